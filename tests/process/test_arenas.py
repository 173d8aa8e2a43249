"""Shared memory of inputs and outputs, and the driver below it."""

from __future__ import annotations

import ctypes
import os
import socket

import pytest

pytest.importorskip("torch")

from harness.process.cuda.arena_layout import ALIGN
from harness.process.cuda.driver import CudaDriver
from harness.process.cuda.shared_memory import Arena

SPECS = [((2, 3), "fp32"), ((1, 5), "fp16")]


@pytest.fixture
def arena():
    made = Arena.create("host", 2 * ALIGN)
    yield made
    made.close()


def test_who_gets_the_descriptor_sees_the_same_bytes(arena):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(ours, [b"x"], [arena.fd])
        _, fds, _, _ = socket.recv_fds(theirs, 1, 1)
    there = Arena.open(arena.handle, fds[0])
    arena.close_fd()
    arena.carve(SPECS)[1].fill_(2.5)
    assert there.carve(SPECS)[1].tolist() == [[2.5] * 5]
    there.room.fill_(0)
    assert not arena.room.any()
    with pytest.raises(OSError, match="Bad file descriptor"):  # it keeps none open
        os.fstat(fds[0])


@pytest.mark.parametrize("size", [0, ALIGN, 4 * ALIGN])
def test_nobody_can_end_the_other_side_by_cutting_its_memory(arena, size):
    with pytest.raises(PermissionError):
        os.truncate(arena.fd, size)


@pytest.mark.parametrize("size", [0, 1, ALIGN + 1])
def test_there_is_room_for_what_was_asked(size):
    made = Arena.create("host", size)
    assert made.room.numel() >= max(size, 1)
    assert not made.room.any()
    made.close()
    made.close()


def test_what_does_not_fit_is_said(arena):
    with pytest.raises(ValueError, match="arena of 2048 bytes is too small for 3 tensors"):
        arena.carve([((1, 8), "fp16")] * 3)


class Library:
    """A driver whose every call returns `code`."""

    def __init__(self, code):
        self.code = code

    def cuMemCreate(self, *_):  # noqa: N802
        return self.code

    def cuGetErrorName(self, _, place):  # noqa: N802
        ctypes.cast(place, ctypes.POINTER(ctypes.c_char_p))[0] = b"ITS_NAME"


def driver(code):
    made = CudaDriver.__new__(CudaDriver)
    made.lib = Library(code)
    return made


@pytest.mark.parametrize(("code", "kind"), [(2, MemoryError), (1, RuntimeError)])
def test_a_full_gpu_is_told_from_a_fault(code, kind):
    with pytest.raises(kind, match=rf"cuMemCreate: ITS_NAME \({code}\)") as caught:
        driver(code).call("cuMemCreate")
    assert type(caught.value) is kind


def test_a_call_that_succeeds_says_nothing():
    driver(0).call("cuMemCreate", 1)
