"""Clocks, power, temperature and throttling while a run goes on, by NVML, in the engine.

Power from a counter of energy that moves in steps. Pure, but for `Recorder`.

NVML's counter holds millijoules since the driver was loaded, of the whole board: idle power, memory
and fans included. It moves every 10 to 100 ms (100 on an H200). So what counts is the time from the
first step inside a stretch to the last one, each known to half of the time between two readings
around it:

    energy   ______|‾‾‾‾‾‾|______|‾‾‾‾‾‾|____
    readings  . . . . . . . . . . . . . . . .
                   ↑ first step           ↑ last step

A counter that goes back (the driver was loaded again, or it is full) begins anew there.
"""

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any

from harness.schema import Machine, Telemetry

#: Throttle reasons that say something about the figures (NVML clocks event reasons).
REASONS = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}


class Monitor:
    """One GPU, watched. On a machine without one it says zeros."""

    def __init__(self, machine: Machine) -> None:
        self._lib: ModuleType | None = None
        self._handle: Any = None
        self.card_gib = machine.memory_gib
        if machine.has_gpu:
            import pynvml

            pynvml.nvmlInit()
            self._lib = pynvml
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(machine.uuid)
        #: Whether a process draws with this GPU: it takes turns with what somebody shows.
        self.has_display = bool(self._told("nvmlDeviceGetGraphicsRunningProcesses"))

    def snapshot(self, foreign_pids: int = 0) -> Telemetry:
        """Read everything once (about 1 ms); `foreign_pids` used the GPU and are not the run's."""
        if (lib := self._lib) is None:
            return Telemetry()
        reasons = self._told("nvmlDeviceGetCurrentClocksEventReasons") or 0
        return Telemetry(
            sm_mhz=lib.nvmlDeviceGetClockInfo(self._handle, lib.NVML_CLOCK_SM),
            mem_mhz=lib.nvmlDeviceGetClockInfo(self._handle, lib.NVML_CLOCK_MEM),
            power_w=lib.nvmlDeviceGetPowerUsage(self._handle) / 1000,
            temperature_c=lib.nvmlDeviceGetTemperature(self._handle, lib.NVML_TEMPERATURE_GPU),
            throttle=tuple(name for bit, name in REASONS.items() if reasons & bit),
            foreign_pids=foreign_pids,
        )

    def sm_mhz(self) -> int:
        """SM clock now; 0 without a GPU."""
        lib = self._lib
        return int(lib.nvmlDeviceGetClockInfo(self._handle, lib.NVML_CLOCK_SM)) if lib else 0

    def energy_j(self) -> float | None:
        """Joules since the driver was loaded; None where the GPU does not count them."""
        told = self._told("nvmlDeviceGetTotalEnergyConsumption")
        return None if told is None else float(told) / 1000

    def memory_by_pid(self) -> dict[int, int]:
        """Bytes of device memory each process holds, as far as the driver tells."""
        processes = self._told("nvmlDeviceGetComputeRunningProcesses") or ()
        return {process.pid: process.usedGpuMemory or 0 for process in processes}

    def unnamed_bytes(self) -> int:
        """Device memory in use that no process is named for: managed memory, and the driver's."""
        memory = self._told("nvmlDeviceGetMemoryInfo")
        return memory.used - sum(self.memory_by_pid().values()) if memory else 0

    def _told(self, question: str) -> Any:
        """NVML's answer about this GPU; None without one, and where the driver does not tell."""
        if self._lib is None:
            return None
        try:
            return getattr(self._lib, question)(self._handle)
        except self._lib.NVMLError:
            return None

    def close(self) -> None:
        """Let NVML go."""
        if self._lib is not None:
            self._lib.nvmlShutdown()
            self._lib = None


READ_EVERY_S = 0.002
CLOCK_EVERY = 8  # readings: each question to NVML takes milliseconds
MOST_ERROR_PCT = 5.0  # beyond it no power is told


@dataclass(frozen=True)
class Reading:
    """NVML at one moment of the monotonic clock; energy None: no counter; clock 0: not read."""

    at_s: float
    energy_j: float | None
    sm_mhz: int = 0


@dataclass(frozen=True)
class Power:
    """Mean power of the board, and how far it may be off because the counter moves in steps."""

    watts: float
    error_pct: float


@dataclass(frozen=True)
class Step:
    """The counter was at `energy_j` from `at_s` on, which is known to `within_s` to each side."""

    at_s: float
    within_s: float
    energy_j: float


def mean_power(readings: Sequence[Reading], since_s: float, until_s: float) -> Power | None:
    """Between two moments; None without a counter, or where it moved too seldom."""
    inside = ([s for s in steps if since_s <= s.at_s <= until_s] for steps in _steps(readings))
    told = [(steps[0], steps[-1]) for steps in inside if len(steps) > 1]
    if not told:
        return None
    first, last = max(told, key=lambda ends: ends[1].at_s - ends[0].at_s)
    span_s, joules = last.at_s - first.at_s, last.energy_j - first.energy_j
    error_pct = 100 * (first.within_s + last.within_s) / span_s if span_s > 0 else math.inf
    return None if error_pct > MOST_ERROR_PCT else Power(joules / span_s, error_pct)


def mean_clock_mhz(readings: Sequence[Reading], since_s: float, until_s: float) -> float | None:
    """Of the SM clock between two moments; None where none was read."""
    told = [r.sm_mhz for r in readings if since_s <= r.at_s <= until_s and r.sm_mhz]
    return math.fsum(told) / len(told) if told else None


def _steps(readings: Sequence[Reading]) -> list[list[Step]]:
    """The counter's steps, cut where it went back."""
    found: list[list[Step]] = [[]]
    counted = [(r.at_s, r.energy_j) for r in readings if r.energy_j is not None]
    for (before_s, before_j), (at_s, energy_j) in pairwise(counted):
        if energy_j < before_j:
            found.append([])
        elif energy_j > before_j:
            found[-1].append(Step((before_s + at_s) / 2, (at_s - before_s) / 2, energy_j))
    return found


class Recorder:
    """Reads on a thread of its own inside a `with` block; `readings` are complete behind it."""

    def __init__(self, meter: Monitor, every_s: float = READ_EVERY_S) -> None:
        self._meter, self._every_s = meter, every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.readings: list[Reading] = []

    def __enter__(self) -> "Recorder":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self._every_s):
            fresh = len(self.readings) % CLOCK_EVERY == 0
            sm_mhz = self._meter.sm_mhz() if fresh else 0
            energy_j = self._meter.energy_j()
            if energy_j is None and fresh and not sm_mhz:
                return  # no GPU
            self.readings.append(Reading(time.monotonic(), energy_j, sm_mhz))
