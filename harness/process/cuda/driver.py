"""The CUDA driver's own calls: memory shared by file descriptor, a stream's wait for a word.

Memory made here has no legacy IPC handle, so nobody can guess one: who has no descriptor cannot
open it. Sections 6.14 (virtual memory management) and 6.19 (stream memory operations) of the CUDA
driver API.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
PINNED = 1  # CU_MEM_ALLOCATION_TYPE_PINNED
ON_DEVICE = 1  # CU_MEM_LOCATION_TYPE_DEVICE
FILE_DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
READ_WRITE = 3  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE
AT_LEAST = 0  # CU_STREAM_WAIT_VALUE_GEQ
WITH_BARRIER = 0  # CU_STREAM_WRITE_VALUE_DEFAULT


class _Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Flags(ctypes.Structure):
    """CUmemAllocationProp.allocFlags."""

    _fields_ = (
        ("compression", ctypes.c_ubyte),
        ("gpu_direct_rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("requested_handles", ctypes.c_int),
        ("location", _Location),
        ("windows_handle", ctypes.c_void_p),
        ("flags", _Flags),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


def keep_memory_private() -> None:
    """Have torch map memory in pieces no legacy IPC handle opens; before its first tensor."""
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


def timer() -> torch.cuda.Event:
    """An event that keeps time."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class DeviceBytes:
    """Raw device bytes as torch adopts them without a copy: `torch.as_tensor(DeviceBytes(...))`."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class CudaDriver:
    """libcuda by ctypes; a call that fails raises RuntimeError with the driver's own name of it.

    Where the GPU has no memory left it is MemoryError, which is no fault of whose turn it is.
    """

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libcuda.so.1")
        self.device = torch.cuda.current_device()

    def call(self, name: str, *args: Any) -> None:
        """Call `name`; raise MemoryError or RuntimeError unless it succeeds."""
        code = getattr(self.lib, name)(*args)
        if code:
            text = ctypes.c_char_p()
            self.lib.cuGetErrorName(code, ctypes.byref(text))
            kind = MemoryError if code == OUT_OF_MEMORY else RuntimeError
            raise kind(f"{name}: {(text.value or b'?').decode()} ({code})")

    def granularity(self) -> int:
        """Bytes that a piece of memory is a multiple of: 2 MiB on every GPU so far."""
        size, recommended = ctypes.c_size_t(), 1
        asked = ctypes.byref(self._properties(shared=True))
        self.call("cuMemGetAllocationGranularity", ctypes.byref(size), asked, recommended)
        return size.value

    def allocate(self, size: int, shared: bool) -> tuple[int, int]:
        """Map `size` fresh bytes; (address, descriptor). `size`: a multiple of the granularity.

        The descriptor opens the memory in another process and is the caller's to close; -1
        unless `shared`.
        """
        handle, fd = ctypes.c_uint64(), ctypes.c_int(-1)
        properties = self._properties(shared)
        self.call(
            *("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size)),
            *(ctypes.byref(properties), ctypes.c_uint64(0)),
        )
        if shared:
            self.call(
                *("cuMemExportToShareableHandle", ctypes.byref(fd), handle),
                *(ctypes.c_int(FILE_DESCRIPTOR), ctypes.c_uint64(0)),
            )
        return self._map(handle, size), fd.value

    def open(self, fd: int, size: int) -> int:
        """Map the memory behind another process's descriptor; returns its address here."""
        handle = ctypes.c_uint64()
        self.call(
            *("cuMemImportFromShareableHandle", ctypes.byref(handle)),
            *(ctypes.c_void_p(fd), ctypes.c_int(FILE_DESCRIPTOR)),
        )
        return self._map(handle, size)

    def free(self, address: int, size: int) -> None:
        """Unmap; the memory is given back once no process maps it."""
        self.call("cuMemUnmap", ctypes.c_uint64(address), ctypes.c_size_t(size))
        self.call("cuMemAddressFree", ctypes.c_uint64(address), ctypes.c_size_t(size))

    def wait_value(self, address: int, value: int) -> None:
        """Hold the current stream until the 32-bit word at `address` is at least `value`."""
        self._stream_value("cuStreamWaitValue32_v2", address, value, AT_LEAST)

    def write_value(self, address: int, value: int) -> None:
        """Store a 32-bit word from the current stream, after all that it queued before."""
        self._stream_value("cuStreamWriteValue32_v2", address, value, WITH_BARRIER)

    def write_wide_value(self, address: int, value: int) -> None:
        """Store a 64-bit word from the current stream, after all that it queued before."""
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        place, word = ctypes.c_uint64(address), ctypes.c_uint64(value)
        self.call("cuStreamWriteValue64_v2", stream, place, word, WITH_BARRIER)

    def _map(self, handle: ctypes.c_uint64, size: int) -> int:
        """Map a handle for reading and writing and let go of it: the mapping keeps the memory."""
        address, nowhere = ctypes.c_uint64(), ctypes.c_uint64(0)
        length = ctypes.c_size_t(size)
        self.call(
            *("cuMemAddressReserve", ctypes.byref(address), length),
            *(ctypes.c_size_t(0), nowhere, ctypes.c_uint64(0)),
        )
        self.call("cuMemMap", address, length, ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        access = _Access(_Location(ON_DEVICE, self.device), READ_WRITE)
        self.call("cuMemSetAccess", address, length, ctypes.byref(access), ctypes.c_size_t(1))
        self.call("cuMemRelease", handle)
        return address.value

    def _properties(self, shared: bool) -> _Properties:
        found = _Properties(type=PINNED, location=_Location(ON_DEVICE, self.device))
        found.requested_handles = FILE_DESCRIPTOR if shared else 0
        return found

    def _stream_value(self, name: str, address: int, value: int, flags: int) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.call(name, stream, ctypes.c_uint64(address), ctypes.c_uint32(value), flags)


def wait_for_sequence(flag: int, turn: int) -> None:
    """Worker's side: make the current stream wait until the word at `flag` has reached `turn`."""
    CudaDriver().wait_value(flag, turn)


def publish_sequence(flag: int, turn: int) -> None:
    """Worker's side: store `turn` behind everything the current stream has queued."""
    CudaDriver().write_value(flag, turn)
