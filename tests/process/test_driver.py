"""What a failed call of the CUDA driver becomes, with a stand-in for its library."""

from __future__ import annotations

import ctypes

import pytest

pytest.importorskip("torch")

from harness.process.cuda.driver import CudaDriver


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
