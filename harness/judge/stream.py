"""The judge's own stream between two waits, so that no host is in its clock.

    closed    wait for `_latch`, a word of pinned host memory that `open` stores to
    opened    the inputs come into being, wrong in some words (harness/judge/withheld.py)
    start     event · those words come right
    ready     event · store the turn to `inputs_flag`
    meanwhile the other process's stream, waiting for `inputs_flag`, does its work
    done      wait for `outputs_flag`, which that stream stores to · event
    end       words of the outputs are read (harness/judge/sampled.py) · event

Both flags lie in shared device memory and belong to an attacker. One stored early only means that
what is read is not there yet.
"""

import functools
import time
from collections.abc import Callable

import torch

from harness.process.cuda.driver import CudaDriver, timer

MOST_PLACED_MS = 0.03


@functools.cache
def _twice_the_l2(device: int) -> torch.Tensor:
    size = torch.cuda.get_device_properties(device).L2_cache_size
    return torch.empty(2 * size, dtype=torch.uint8, device="cuda")


def evict_l2() -> None:
    """Queue a write of twice the L2: what lay there is read from memory again."""
    _twice_the_l2(torch.cuda.current_device()).zero_()


class StreamLatch:
    """One burst at a time on the judge's stream; `turn` numbers them."""

    def __init__(self, inputs_flag: int, outputs_flag: int) -> None:
        self._latch = torch.zeros(1, dtype=torch.int32).pin_memory()
        self._driver = CudaDriver()
        self._inputs_flag, self._outputs_flag = inputs_flag, outputs_flag
        self._rescue = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._reached, self._opened, self._start = (timer() for _ in range(3))
        self._ready, self._done, self._end = (timer() for _ in range(3))
        self.turn, self._opened_s, self._open_ms = 0, 0.0, 0.0
        evict_l2()  # nothing behind the latch may allocate or be queued for the first time

    def close(self) -> None:
        """What is queued on the current stream from now on waits for `open`."""
        self.turn += 1
        self._driver.write_value(self._outputs_flag, 0)
        self._reached.record()
        self._driver.wait_value(self._latch.data_ptr(), self.turn)
        self._opened.record()

    def lend(self, reveal: Callable[[], None], sample: Callable[[], None]) -> None:
        """Behind the inputs' copies: make them right, let the other stream work, read what it made.

        Nothing that `reveal` and `sample` queue may allocate or be queued for the first time: the
        driver would wait for a stream that waits for us.
        """
        self._start.record()
        reveal()
        self._ready.record()
        self._driver.write_value(self._inputs_flag, self.turn)
        self._driver.wait_value(self._outputs_flag, self.turn)
        self._done.record()
        sample()
        self._end.record()

    def wait_reached(self) -> None:
        """Block until everything that was queued before `close` is done."""
        self._reached.synchronize()

    def open(self) -> None:
        """One store of the host; the GPU sees it within a microsecond."""
        self._latch[0] = self.turn
        self._opened_s = time.monotonic()

    def release(self) -> None:
        """Let the judge's stream go on whatever the other one does; afterwards it is idle."""
        self._open_ms = 1e3 * (time.monotonic() - self._opened_s)
        self.open()
        with torch.cuda.stream(self._rescue):
            self._driver.write_value(self._outputs_flag, self.turn)
        torch.cuda.synchronize()

    @property
    def behind_ms(self) -> float:
        """How long behind the end of its calls the worker had answered, on the host's clock."""
        return max(0.0, self._open_ms - float(self._opened.elapsed_time(self._end)))

    def elapsed_ms(self) -> tuple[float, float]:
        """(start to end, what of it were `reveal` and `sample`), on the GPU's own clock."""
        self._end.synchronize()
        own = self._start.elapsed_time(self._ready) + self._done.elapsed_time(self._end)
        return float(self._start.elapsed_time(self._end)), float(own)


class OwnTime:
    """What the judge's own part of a burst takes where nobody disturbs it: the least so far.

    All workers of a run share one, so nobody can raise it by disturbing his own bursts. By
    where a worker's memory lies, words come right later, in each of its bursts: by up to 0.016 ms
    on one H200. That is timed while all workers are held and the judge watches that it is alone,
    and no more than MOST_PLACED_MS is believed.
    """

    def __init__(self) -> None:
        self._least_ms: dict[object, float] = {}
        self._held_ms: dict[object, dict[object, float]] = {}  # key → worker → the least

    def rehearsed(self, key: object, worker: object, reveal_ms: float) -> None:
        """`reveal` took so long in this worker's memory while everybody was held."""
        known = self._held_ms.setdefault(key, {})
        known[worker] = min(reveal_ms, known.get(worker, reveal_ms))

    def beyond(self, key: object, whole_ms: float, own_ms: float, worker: object = None) -> float:
        """`whole_ms` without the usual part of the judge; what disturbs that part counts.

        `key`: what the judge's part depends on. Somebody who gets the GPU to himself while words
        come right would be ahead of the clock; here that stretch is on it.
        """
        least_ms = self._least_ms[key] = min(own_ms, self._least_ms.get(key, own_ms))
        held_ms = self._held_ms.get(key, {})
        placed_ms = held_ms[worker] - min(held_ms.values()) if worker in held_ms else 0.0
        return whole_ms - min(own_ms, least_ms + min(placed_ms, MOST_PLACED_MS))
