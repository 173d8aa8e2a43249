"""Memory that the judge owns and one worker maps.

On a GPU: a cudaMalloc block of its own, shared by CUDA IPC handle. Never a tensor of torch's caching
allocator, whose handle would export the whole block around it. Without IPC, or on a CPU: a file in
shared memory. Both sides cut tensors out of it by offset; the judge treats all of it as hostile.
"""

from __future__ import annotations

import base64
import ctypes
import math
from pathlib import Path
from typing import Any, Literal

import torch

ALIGN = 1024  # bytes; TMA wants 16, 128-byte swizzle 1024
ArenaKind = Literal["cuda_ipc", "host"]
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


class CudaDriver:
    """The driver calls that share memory and hold a stream (CUDA driver API, 6.13 and 6.18)."""

    class IpcHandle(ctypes.Structure):
        """CUipcMemHandle."""

        _fields_ = (("reserved", ctypes.c_char * 64),)

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libcuda.so.1")
        self.lib.cuIpcOpenMemHandle_v2.argtypes = [
            ctypes.c_void_p,
            CudaDriver.IpcHandle,
            ctypes.c_uint,
        ]

    def call(self, name: str, *args: Any) -> None:
        """Call `name`; raise RuntimeError with the driver's own name of the error."""
        code = getattr(self.lib, name)(*args)
        if code:
            text = ctypes.c_char_p()
            self.lib.cuGetErrorName(code, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'?').decode()} ({code})")

    def allocate(self, size: int) -> int:
        """Return the address of `size` fresh bytes."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        """Give an allocation back."""
        self.call("cuMemFree_v2", ctypes.c_uint64(address))

    def export(self, address: int) -> str:
        """Return a handle, as text, that another process can open."""
        handle = CudaDriver.IpcHandle()
        self.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(address))
        return base64.b64encode(bytes(handle)).decode()

    def open(self, handle: str) -> int:
        """Map another process's allocation here; return its address."""
        address = ctypes.c_uint64()
        raw = CudaDriver.IpcHandle.from_buffer_copy(base64.b64decode(handle))
        lazy_peer_access = 1
        self.call(
            "cuIpcOpenMemHandle_v2", ctypes.byref(address), raw, ctypes.c_uint(lazy_peer_access)
        )
        return address.value


class Gate:
    """Holds this process's current stream until the host says so, and tells another process when it went on.

    `event` is recorded by the owner behind what it queued while the gate was closed; the other process
    makes its stream wait for it by `handle`.
    """

    def __init__(self) -> None:
        self._flag = torch.zeros(1, dtype=torch.int32).pin_memory()
        self._driver = CudaDriver()
        self._turn = 0
        self.event = torch.cuda.Event(enable_timing=False, interprocess=True)  # type: ignore[no-untyped-call]
        self.event.record()
        ipc: bytes = self.event.ipc_handle()  # type: ignore[no-untyped-call]
        self.handle = base64.b64encode(ipc).decode()

    def close(self) -> None:
        """What is queued on the current stream from now on waits for `open`."""
        self._turn += 1
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        address, at_least = ctypes.c_uint64(self._flag.data_ptr()), 0
        self._driver.call(
            "cuStreamWaitValue32_v2", stream, address, ctypes.c_uint32(self._turn), at_least
        )

    def open(self) -> None:
        """One store of the host; the GPU sees it within a microsecond."""
        self._flag[0] = self._turn

    @staticmethod
    def of_other_process(handle: str) -> torch.cuda.Event:
        """The event of another process's gate."""
        raw = base64.b64decode(handle)
        event: torch.cuda.Event = torch.cuda.Event.from_ipc_handle(torch.device("cuda", 0), raw)  # type: ignore[no-untyped-call]
        return event


class _DeviceBytes:
    """Raw device bytes in the form torch adopts without a copy."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class Arena:
    """A run of bytes seen by two processes; `bytes` is a uint8 tensor over all of it."""

    def __init__(
        self, kind: ArenaKind, size: int, storage: torch.Tensor, handle: dict[str, Any]
    ) -> None:
        self.kind, self.size, self.bytes, self.handle = kind, size, storage, handle
        self._address: int | None = None

    @classmethod
    def create(cls, kind: ArenaKind, size: int, path: str) -> Arena:
        """Judge's side: allocate. `path` is where a host arena's file goes."""
        if kind == "host":
            return cls.open({"kind": kind, "size": size, "path": path})
        driver = CudaDriver()
        torch.zeros(1, device="cuda")  # makes torch's primary context current on this thread
        address = driver.allocate(size)
        storage = torch.as_tensor(_DeviceBytes(address, size), device="cuda")
        arena = cls(
            kind, size, storage, {"kind": kind, "size": size, "ipc": driver.export(address)}
        )
        arena._address = address
        return arena

    @classmethod
    def open(cls, handle: dict[str, Any]) -> Arena:
        """Worker's side: map what the judge allocated."""
        size = int(handle["size"])
        if handle["kind"] == "host":
            storage = torch.from_file(
                str(handle["path"]), shared=True, size=size, dtype=torch.uint8
            )
            return cls("host", size, storage, handle)
        torch.zeros(1, device="cuda")
        address = CudaDriver().open(str(handle["ipc"]))
        return cls(
            "cuda_ipc", size, torch.as_tensor(_DeviceBytes(address, size), device="cuda"), handle
        )

    def close(self) -> None:
        """Judge's side: give the memory back."""
        self.bytes = torch.empty(0, dtype=torch.uint8)
        if self._address is not None:
            torch.cuda.synchronize()
            CudaDriver().free(self._address)
        elif self.kind == "host":
            Path(str(self.handle["path"])).unlink(missing_ok=True)

    def carve(self, specs: list[tuple[tuple[int, ...], str]]) -> list[torch.Tensor]:
        """Cut contiguous tensors (shape, dtype) out of the arena, each aligned to ALIGN bytes."""
        tensors, offset = [], 0
        for shape, dtype in specs:
            size = nbytes(shape, dtype)
            if offset + size > self.size:
                raise ValueError(
                    f"arena of {self.size} bytes is too small for {len(specs)} tensors"
                )
            flat = self.bytes[offset : offset + size]
            tensors.append(flat.view(DTYPES[dtype]).view(shape))
            offset += aligned(size)
        return tensors


def nbytes(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of one contiguous tensor."""
    return math.prod(shape) * DTYPES[dtype].itemsize


def aligned(size: int) -> int:
    """`size` rounded up to ALIGN."""
    return -(-size // ALIGN) * ALIGN
