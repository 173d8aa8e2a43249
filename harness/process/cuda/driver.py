"""The CUDA driver's own calls: memory shared by file descriptor, a stream's wait for a word.

Memory made here has no legacy IPC handle, so nobody can guess one: who has no descriptor cannot
open it. Sections 6.14 (virtual memory management) and 6.19 (stream memory operations) of the CUDA
driver API.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import torch

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
PINNED = 1  # CU_MEM_ALLOCATION_TYPE_PINNED
ON_DEVICE = 1  # CU_MEM_LOCATION_TYPE_DEVICE
FILE_DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
READ_WRITE = 3  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE
AT_LEAST = 0  # CU_STREAM_WAIT_VALUE_GEQ
WITH_BARRIER = 0  # CU_STREAM_WRITE_VALUE_DEFAULT


def keep_memory_private() -> None:
    """Have torch map memory in pieces no legacy IPC handle opens; before its first tensor."""
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


def timer() -> torch.cuda.Event:
    """An event that keeps time."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def elapsed_ms(queue: Callable[[], object]) -> float:
    """What `queue` has the GPU do, timed behind all that was queued before; waits for its end."""
    begun, over = timer(), timer()
    begun.record()
    queue()
    over.record()
    over.synchronize()
    return float(begun.elapsed_time(over))


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
        """Call `name`; raise MemoryError or RuntimeError unless it succeeds.

        A whole number goes as 64 bits: on Linux a parameter of fewer has a place for as many.
        """
        wide = (ctypes.c_uint64(arg) if isinstance(arg, int) else arg for arg in args)
        if code := getattr(self.lib, name)(*wide):
            text = ctypes.c_char_p()
            self.lib.cuGetErrorName(code, ctypes.byref(text))
            kind = MemoryError if code == OUT_OF_MEMORY else RuntimeError
            raise kind(f"{name}: {(text.value or b'?').decode()} ({code})")

    def whole(self, size: int) -> int:
        """`size`, or the next multiple of what memory comes in: 2 MiB on every GPU so far."""
        piece, recommended = ctypes.c_size_t(), 1
        asked = self._properties(shared=True)
        self.call("cuMemGetAllocationGranularity", ctypes.byref(piece), asked, recommended)
        return -(-size // piece.value) * piece.value

    def allocate(self, size: int, shared: bool) -> tuple[int, int]:
        """Map `size` fresh bytes, as `whole` gives them; (address, descriptor).

        The descriptor opens the memory in another process and is the caller's to close; -1
        unless `shared`.
        """
        handle, fd = ctypes.c_uint64(), ctypes.c_int(-1)
        self.call("cuMemCreate", ctypes.byref(handle), size, self._properties(shared), 0)
        if shared:
            self.call("cuMemExportToShareableHandle", ctypes.byref(fd), handle, FILE_DESCRIPTOR, 0)
        return self._map(handle, size), fd.value

    def open(self, fd: int, size: int) -> int:
        """Map the memory behind another process's descriptor; returns its address here."""
        handle = ctypes.c_uint64()
        self.call("cuMemImportFromShareableHandle", ctypes.byref(handle), fd, FILE_DESCRIPTOR)
        return self._map(handle, size)

    def free(self, address: int, size: int) -> None:
        """Unmap; the memory is given back once no process maps it."""
        self.call("cuMemUnmap", address, size)
        self.call("cuMemAddressFree", address, size)

    def wait_value(self, address: int, value: int) -> None:
        """Hold the current stream until the 32-bit word at `address` is at least `value`."""
        self._on_stream("cuStreamWaitValue32_v2", address, value, AT_LEAST)

    def write_value(self, address: int, value: int) -> None:
        """Store a 32-bit word from the current stream, after all that it queued before."""
        self._on_stream("cuStreamWriteValue32_v2", address, value, WITH_BARRIER)

    def write_wide_value(self, address: int, value: int) -> None:
        """Store a 64-bit word from the current stream, after all that it queued before."""
        self._on_stream("cuStreamWriteValue64_v2", address, value, WITH_BARRIER)

    def _map(self, handle: ctypes.c_uint64, size: int) -> int:
        """Map a handle for reading and writing and let go of it: the mapping keeps the memory."""
        address, anywhere = ctypes.c_uint64(), 0
        self.call("cuMemAddressReserve", ctypes.byref(address), size, 0, anywhere, 0)
        self.call("cuMemMap", address, size, 0, handle, 0)
        access = (ctypes.c_int * 3)(ON_DEVICE, self.device, READ_WRITE)  # CUmemAccessDesc
        self.call("cuMemSetAccess", address, size, access, 1)
        self.call("cuMemRelease", handle)
        return address.value

    def _properties(self, shared: bool) -> ctypes.Array[ctypes.c_int]:
        """CUmemAllocationProp: type, handles asked for, location; none of Windows', no flags."""
        return (ctypes.c_int * 8)(PINNED, FILE_DESCRIPTOR if shared else 0, ON_DEVICE, self.device)

    def _on_stream(self, name: str, address: int, value: int, flags: int) -> None:
        self.call(name, torch.cuda.current_stream().cuda_stream, address, value, flags)


def wait_for_sequence(flag: int, turn: int) -> None:
    """Worker's side: make the current stream wait until the word at `flag` has reached `turn`."""
    CudaDriver().wait_value(flag, turn)


def publish_sequence(flag: int, turn: int) -> None:
    """Worker's side: store `turn` behind everything the current stream has queued."""
    CudaDriver().write_value(flag, turn)
