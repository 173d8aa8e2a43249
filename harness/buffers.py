"""Memory that the judge owns and one worker maps.

On a GPU: a cudaMalloc block of its own, shared by CUDA IPC handle. Never a tensor of torch's caching
allocator, whose handle would export the whole block around it. Without IPC, or on a CPU: a file in
shared memory. Both sides cut tensors out of it by offset; the judge treats all of it as hostile.
"""

from __future__ import annotations

import base64
import ctypes
from pathlib import Path
from typing import Any, Literal

import torch

from harness.layout import ALIGN, aligned, nbytes

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

    def wait_value(self, address: int, value: int) -> None:
        """Hold the current stream until the 32-bit word at `address` is at least `value`."""
        at_least = 0
        self._stream_value("cuStreamWaitValue32_v2", address, value, at_least)

    def write_value(self, address: int, value: int) -> None:
        """Store a 32-bit word from the current stream, after all that it queued before."""
        with_barrier = 0
        self._stream_value("cuStreamWriteValue32_v2", address, value, with_barrier)

    def _stream_value(self, name: str, address: int, value: int, flags: int) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.call(name, stream, ctypes.c_uint64(address), ctypes.c_uint32(value), flags)

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
    """The judge's stream between two waits, so that no host is in its clock.

        closed    wait for `_latch`, a word of pinned host memory that `open` stores to
        opened    start event · inputs come into being · store the turn to `inputs_flag`
        meanwhile the other process's stream, waiting for `inputs_flag`, does its work
        ended     wait for `outputs_flag`, which that stream stores to · copy the outputs · end event

    Both flags lie in shared device memory and belong to an attacker: one stored early only means that
    what is copied is not there yet.
    """

    def __init__(self, inputs_flag: int, outputs_flag: int) -> None:
        self._latch = torch.zeros(1, dtype=torch.int32).pin_memory()
        self._driver = CudaDriver()
        self._inputs_flag, self._outputs_flag = inputs_flag, outputs_flag
        self._rescue = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._reached, self._start, self._end = timer(), timer(), timer()
        self.turn = 0

    def close(self) -> None:
        """What is queued on the current stream from now on waits for `open`."""
        self.turn += 1
        self._driver.write_value(self._outputs_flag, 0)
        self._reached.record()
        self._driver.wait_value(self._latch.data_ptr(), self.turn)
        self._start.record()

    def announce_inputs(self) -> None:
        """Behind the inputs' copies: tell the other stream, then wait for it."""
        self._driver.write_value(self._inputs_flag, self.turn)
        self._driver.wait_value(self._outputs_flag, self.turn)

    def finish(self) -> None:
        """Behind the outputs' copies: the end of the judge's clock."""
        self._end.record()

    def await_reached(self) -> None:
        """Block until everything that was queued before `close` is done."""
        self._reached.synchronize()

    def open(self) -> None:
        """One store of the host; the GPU sees it within a microsecond."""
        self._latch[0] = self.turn

    def release(self) -> None:
        """Let the judge's stream go on whatever the other one does; afterwards it is idle."""
        self.open()
        with torch.cuda.stream(self._rescue):
            self._driver.write_value(self._outputs_flag, self.turn)
        torch.cuda.synchronize()

    def elapsed_ms(self) -> float:
        """From before the inputs existed to after the outputs were held, on the GPU's own clock."""
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end))


def timer() -> torch.cuda.Event:
    """An event that keeps time."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def wait_for_turn(flag: int, turn: int) -> None:
    """Worker's side: make the current stream wait until the word at `flag` has reached `turn`."""
    CudaDriver().wait_value(flag, turn)


def tell_turn(flag: int, turn: int) -> None:
    """Worker's side: store `turn` behind everything the current stream has queued."""
    CudaDriver().write_value(flag, turn)


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
        """Judge's side: allocate `size` bytes and a flag. `path` is where a host arena's file goes."""
        size = aligned(size) + ALIGN
        if kind == "host":
            arena = cls.open({"kind": kind, "size": size, "path": path})
            Path(path).chmod(0o666)  # the worker may be another user; its folder is no one else's
            return arena
        driver = CudaDriver()
        torch.zeros(1, device="cuda")  # makes torch's primary context current on this thread
        address = driver.allocate(size)
        storage = torch.as_tensor(_DeviceBytes(address, size), device="cuda")
        arena = cls(
            kind, size, storage, {"kind": kind, "size": size, "ipc": driver.export(address)}
        )
        arena._address = address
        return arena

    @property
    def room(self) -> torch.Tensor:
        """All bytes that tensors may be cut from."""
        return self.bytes[: self.size - ALIGN]

    @property
    def flag(self) -> int:
        """Address of the last word, which no tensor covers."""
        return int(self.bytes.data_ptr()) + self.size - 4

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
            if offset + size > self.size - ALIGN:
                raise ValueError(
                    f"arena of {self.size} bytes is too small for {len(specs)} tensors"
                )
            flat = self.bytes[offset : offset + size]
            tensors.append(flat.view(DTYPES[dtype]).view(shape))
            offset += aligned(size)
        return tensors
