"""Memory that the judge owns and one worker maps.

On a GPU: an allocation of its own (harness/process/cuda/driver.py). Where that cannot be had, or on
a CPU: a file of memory that has no name and cannot be cut short. Either is handed to the worker as
a file descriptor, so nobody else can open it. Both sides find tensors in it by offset; the judge
treats all of it as hostile.

    device arena   [ room: tensors .............. ][ control: flag, table ]
    host arena     [ room: tensors .............. ]
"""

import fcntl
import mmap
import os
from typing import Any, Literal

import torch

from harness.process.cuda.arena_layout import ALIGN, CONTROL_BYTES, aligned, nbytes
from harness.process.cuda.driver import CudaDriver, DeviceBytes

ArenaKind = Literal["device", "host"]
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
DTYPES["int32"] = torch.int32  # where packed sequences begin
#: Who could cut a file would end the other side, which reads what is no longer there.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
TABLE = 4096  # bytes from the flag to the table, so that neither lies in the other's cache line


class Arena:
    """Bytes seen by two processes; `room`: a uint8 tensor over all that tensors may lie in."""

    def __init__(self, kind: ArenaKind, size: int, storage: torch.Tensor, fd: int = -1) -> None:
        self.kind, self.size, self.bytes = kind, size, storage
        self.fd = fd  # opens the arena elsewhere; the judge's until `close_fd`

    @classmethod
    def create(cls, kind: ArenaKind, size: int) -> "Arena":
        """Judge's side: make an arena with room for `size` bytes.

        Raises RuntimeError or OSError where device memory cannot be shared by descriptor.
        """
        if kind == "host":
            size = max(aligned(size), ALIGN)
            fd = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.truncate(fd, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
            return cls(kind, size, _mapped(fd, size), fd)
        torch.zeros(1, device="cuda")  # makes torch's primary context current on this thread
        driver = CudaDriver()
        size = driver.whole(size + CONTROL_BYTES)
        address, fd = driver.allocate(size, shared=True)
        return cls(kind, size, torch.as_tensor(DeviceBytes(address, size), device="cuda"), fd)

    @classmethod
    def open(cls, handle: dict[str, Any], fd: int) -> "Arena":
        """Worker's side: map what the judge made; `fd` is closed."""
        size = int(handle["size"])
        if handle["kind"] == "host":
            storage = _mapped(fd, size)
            os.close(fd)
            return cls("host", size, storage)
        torch.zeros(1, device="cuda")
        address = CudaDriver().open(fd, size)
        os.close(fd)
        return cls("device", size, torch.as_tensor(DeviceBytes(address, size), device="cuda"))

    @property
    def handle(self) -> dict[str, Any]:
        """What the worker must be told beside the descriptor."""
        return {"kind": self.kind, "size": self.size}

    @property
    def room(self) -> torch.Tensor:
        """All bytes that tensors may lie in."""
        return self.bytes if self.kind == "host" else self.bytes[: self.size - CONTROL_BYTES]

    @property
    def flag(self) -> int:
        """Address of a 32-bit word that no tensor covers; device arenas only."""
        return int(self.bytes.data_ptr()) + self.size - CONTROL_BYTES

    @property
    def flag_word(self) -> torch.Tensor:
        """The same word as an int32 tensor [1]."""
        start = self.size - CONTROL_BYTES
        return self.bytes[start : start + 4].view(torch.int32)

    def table(self, entries: int) -> torch.Tensor:
        """Int64 words that no tensor covers; device arenas only."""
        start = self.size - CONTROL_BYTES + TABLE
        return self.bytes[start : start + 8 * entries].view(torch.int64)

    def carve(self, specs: list[tuple[tuple[int, ...], str]]) -> list[torch.Tensor]:
        """Cut contiguous tensors (shape, dtype) out of the room, each aligned to ALIGN bytes."""
        tensors, offset = [], 0
        for shape, dtype in specs:
            size = nbytes(shape, dtype)
            if offset + size > self.room.numel():
                said = f"arena of {self.room.numel()} bytes is too small for {len(specs)} tensors"
                raise ValueError(said)
            tensors.append(self.room[offset : offset + size].view(DTYPES[dtype]).view(shape))
            offset += aligned(size)
        return tensors

    def close_fd(self) -> None:
        """Judge's side: the worker has the arena, and nobody else will get it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def close(self) -> None:
        """Judge's side: give the memory back."""
        self.close_fd()
        address = self.bytes.data_ptr()
        self.bytes = torch.empty(0, dtype=torch.uint8)
        if self.kind == "device":
            torch.cuda.synchronize()
            CudaDriver().free(address, self.size)


def _mapped(fd: int, size: int) -> torch.Tensor:
    """All bytes of a host arena; the tensor keeps them mapped."""
    return torch.frombuffer(mmap.mmap(fd, size), dtype=torch.uint8)
