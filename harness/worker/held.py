"""A burst's results, held where the judge can read them: no copy lies between two calls.

While the calls run, what torch allocates comes out of the outputs' arena, which the judge maps too.
A result that lies there stays where it is, and the judge's stream is told its offset. Anything else
is copied into a slot of the arena behind its call, and the copy is part of the call's time: a
result outside (allocated on a side stream, or before), one with holes, and memory that a submission
returns again.

    outputs' arena   [ slots: copies of results ][ pool: what the calls allocate .............. ]

Whether a submission returns memory of its own from every call is seen in the first bursts of each
shape, a check and a warm-up. Their results are copied, and torch allocates as always, so what a
submission keeps for itself (graphs, workspaces) does not come out of the arena.

The pool is torch's: torch.cuda.MemPool with an allocator made of two function pointers. It gets its
part of the arena at once and divides it as torch divides its own memory; what does not fit lies
elsewhere.
"""

import contextlib
import ctypes
from collections.abc import Iterator

import torch

from harness.process.cuda.arena_layout import OUTPUT_SHARES, PIECE_BYTES
from harness.process.cuda.driver import CudaDriver, publish_sequence
from harness.process.cuda.shared_memory import Arena

FIRST_BURSTS = 2  # of each plan; graphs are captured after a call or three
MOST_RESULTS = 64 * 8  # of a burst: 64 calls of up to 8 results
ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)


class Pool:
    """Allocations of this process come out of `room`, uint8 on a GPU, while it is entered."""

    def __init__(self, room: torch.Tensor) -> None:
        self._room = room
        self._driver, self._given = CudaDriver(), False
        self._functions = (ALLOCATE(self._allocate), FREE(self._free))  # kept: C calls them
        addresses = (ctypes.cast(function, ctypes.c_void_p).value for function in self._functions)
        self._allocator = torch._C._cuda_customAllocator(*addresses)  # type: ignore[arg-type]
        self._pool = torch.cuda.MemPool(self._allocator)
        with self.entered():
            torch.empty(room.numel(), dtype=torch.uint8, device="cuda")  # one block, free again

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """For every thread, unlike torch.cuda.use_mem_pool: autograd has its own threads."""
        device = self._driver.device
        torch._C._cuda_beginAllocateToPool(device, self._pool.id)
        try:
            yield
        finally:
            torch._C._cuda_endAllocateToPool(device, self._pool.id)
            torch._C._cuda_releasePool(device, self._pool.id)

    def _allocate(self, size: int, device: int, stream: int) -> int:
        """Called by torch for a block of `size` bytes or more: the room first, then our own."""
        if not self._given and size <= self._room.numel():
            self._given = True
            return self._room.data_ptr()
        return self._driver.allocate(self._driver.whole(size), shared=False)[0]

    def _free(self, address: int, size: int, device: int, stream: int) -> None:
        """Called by torch where it is short of memory and has a block to spare."""
        if address == self._room.data_ptr():
            self._given = False
        else:
            self._driver.free(address, self._driver.whole(size))


class Held:
    """The results of one burst on a GPU."""

    def __init__(self, arena: Arena) -> None:
        """`arena`: of the outputs; if no device memory, results only wait to be copied into it."""
        self._arena, self._shared = arena, arena.kind == "device"
        # plan → how many bursts in a row each call of it returned memory of its own
        self._separate: dict[str, int] = {}
        self._plan, self._seen = "", set[int]()
        self._results: list[torch.Tensor] = []  # what the calls returned, so that nobody reuses it
        self.slots: list[torch.Tensor] = []
        self.tensors: list[torch.Tensor] = []  # flat and dense, one a result
        if self._shared:
            slots = arena.room.numel() // OUTPUT_SHARES // PIECE_BYTES * PIECE_BYTES
            self._pool = Pool(arena.room[slots:])
            self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._pinned = torch.zeros(MOST_RESULTS, dtype=torch.int64).pin_memory()

    def prepare(self, plan: str, slots: list[torch.Tensor]) -> None:
        """Let go of the last burst. `plan`: what the next asks for; a slot a result, in order."""
        if self._results:
            distinct = len(self._seen) == len(self._results)
            self._separate[self._plan] = self._separate.get(self._plan, 0) + 1 if distinct else 0
        self._results, self.tensors, self._seen = [], [], set()
        self._plan, self.slots = plan, slots

    @contextlib.contextmanager
    def lending(self) -> Iterator[None]:
        """Around the calls."""
        lent = self._shared and self._known
        with self._pool.entered() if lent else contextlib.nullcontext():
            yield

    def keep(self, result: torch.Tensor) -> tuple[int, ...]:
        """Hold the next result, in place or by a copy queued behind its call; its strides."""
        again = result.data_ptr() in self._seen
        self._results.append(result)
        self._seen.add(result.data_ptr())
        tensor, strides = self.placed(result, self.slots[len(self.tensors)], again)
        self.tensors.append(tensor)
        if self._shared and len(self.tensors) == len(self.slots):
            self.send_offsets()  # before the last event: for a slow host the GPU waits, in its time
        return strides

    def placed(
        self, result: torch.Tensor, slot: torch.Tensor, again: bool
    ) -> tuple[torch.Tensor, tuple[int, ...]]:
        """`result`, flat, where it lies or as a copy queued behind its call, and its strides.

        again: another result that is still held lies at the same place.
        """
        alike = (result.shape, result.dtype) == (slot.shape, slot.dtype)
        flat = dense_storage(result) if alike else None
        if flat is None:  # holes, overlap or another type: by value
            return self._copied(result, slot).view(-1), slot.stride()
        stays = self._known and not again and not (self._shared and self.offset(flat) is None)
        return (flat if stays else self._copied(flat, slot.view(-1))), result.stride()

    def send_offsets(self) -> None:
        """Where the results lie, on a stream of its own: the calls still wait for their inputs."""
        offsets = [self.offset(tensor) for tensor in self.tensors]
        count = len(offsets)
        self._pinned[:count] = torch.tensor(offsets)
        with torch.cuda.stream(self._side):
            self._arena.table(count).copy_(self._pinned[:count], non_blocking=True)

    def tell(self, turn: int) -> None:
        """Tell the judge's stream that the results lie there and all that was queued is done."""
        torch.cuda.current_stream().wait_stream(self._side)
        publish_sequence(self._arena.flag, turn)

    @property
    def _known(self) -> bool:
        return self._separate.get(self._plan, 0) >= FIRST_BURSTS

    def offset(self, tensor: torch.Tensor) -> int | None:
        """Bytes from the start of the arena to dense `tensor`; None if it lies elsewhere."""
        offset = tensor.data_ptr() - self._arena.room.data_ptr()
        return offset if 0 <= offset <= self._arena.room.numel() - tensor.nbytes else None

    def _copied(self, result: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
        """A copy of `result`, queued on the current stream: in its slot, or beside if unshared."""
        target = slot if self._shared else torch.empty_like(slot, device=result.device)
        return target.copy_(result)


class Ring:
    """The last results of a stretch, one in each place of a ring.

    A call may have the memory of the result that had its place before, or a copy of what it returns
    goes to the slot of that place: either way, with p places and while call n runs, the results of
    calls n - p + 1 to n - 1 are whole. Where a result lies and how many calls are over is told on
    the stream of the calls.
    """

    def __init__(self, held: Held, arena: Arena) -> None:
        self._held, self._flag = held, arena.flag
        places = len(held.slots)
        self._table = arena.table(places).data_ptr()
        self._results: list[torch.Tensor | None] = [None] * places
        self._told = [-1] * places
        self._driver = CudaDriver()

    def let_go(self, place: int) -> None:
        """Of what lies in `place`, before the next call for it."""
        self._results[place] = None

    def keep(self, result: torch.Tensor, place: int) -> tuple[int, ...]:
        """Hold a result in `place`; returns its strides."""
        held, address = self._held, result.data_ptr()
        others = (r for at, r in enumerate(self._results) if r is not None and at != place)
        again = any(other.data_ptr() == address for other in others)
        tensor, strides = held.placed(result, held.slots[place], again)
        self._results[place] = result
        offset = held.offset(tensor)
        if offset is not None and offset != self._told[place]:
            self._told[place] = offset
            self._driver.write_wide_value(self._table + 8 * place, offset)
        return strides

    def over(self, calls: int) -> None:
        """Tell that so many calls are over, behind all that is queued."""
        self._driver.write_value(self._flag, calls)


def dense_storage(tensor: torch.Tensor) -> torch.Tensor | None:
    """`tensor` in its own memory order, without a copy, or None if it has holes or overlaps."""
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda d: (-strides[d], tensor.shape[d] != 1))
    ordered = tensor.permute(order)
    return ordered.view(-1) if ordered.is_contiguous() else None
