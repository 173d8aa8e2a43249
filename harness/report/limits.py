"""How near a result is to what the chip can do, and in words what holds it back. Pure arithmetic.

Three ceilings of attention on one chip (FlashAttention-3 paper, section 3.1, argues with the first two):

    tensor   FLOPs / dense 16-bit peak
    exp      one exponential per score / (SMs · 16 a clock · clock): the special-function units
    memory   arguments read once, results written once / bandwidth
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.machine import peak_tflops
from harness.problems import Problem, get_problem
from harness.schema import Case, Machine, Result

EXP_PER_CLOCK_PER_SM = 16  # CUDA C++ Programming Guide, arithmetic throughput table, 8.0 to 9.0
BOOST_MHZ = 1830  # what the peak of an H100 SXM is reckoned with
#: Bytes a second to device memory, by (capability, SMs, least GiB): the H100 and the H200 share a die.
BANDWIDTH = (("9.0", 132, 100.0, 4.8e12), ("9.0", 132, 0.0, 3.35e12), ("8.0", 108, 60.0, 2.0e12))
REGISTERS_PER_SM = 65536
WARPS_PER_SM = 64
SHARED_PER_SM = {"9.0": 228 << 10, "10.0": 228 << 10, "8.0": 164 << 10, "8.9": 100 << 10}


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Shortest possible time of one call under each limit alone, in ms; None where unknown."""

    tensor_ms: float | None
    exp_ms: float | None
    memory_ms: float | None
    intensity: float  # FLOPs a byte


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel asks of an SM."""

    kernel: str
    registers: int
    shared_bytes: int
    spill_bytes: int
    threads: int

    def warps_per_sm(self, capability: str) -> int:
        """Warps that fit on one SM at a time."""
        warps = max(self.threads // 32, 1)
        by_registers = (
            REGISTERS_PER_SM // max(self.registers * self.threads, 1) if self.registers else 32
        )
        room = SHARED_PER_SM.get(capability, 100 << 10)
        by_shared = room // (self.shared_bytes + 1024) if self.shared_bytes else 32
        return min(by_registers, by_shared, WARPS_PER_SM // warps, 32) * warps


def ceilings(case: Case, machine: Machine, sm_mhz: float, problem: Problem) -> Ceilings:
    """The three limits at the measured clock, or with 0 at the chip's own."""
    flops, io_bytes = problem.flops(case), problem.io_bytes(case)
    exponentials = problem.exponentials(case)
    clock = (sm_mhz or BOOST_MHZ) * 1e6
    peak = peak_tflops(machine)
    scale = sm_mhz / BOOST_MHZ if sm_mhz and machine.capability == "9.0" else 1.0
    speed = bandwidth(machine)
    return Ceilings(
        tensor_ms=flops / (peak * 1e12 * scale) * 1e3 if peak else None,
        exp_ms=exponentials / (machine.sms * EXP_PER_CLOCK_PER_SM * clock) * 1e3
        if machine.sms
        else None,
        memory_ms=io_bytes / speed * 1e3 if speed else None,
        intensity=flops / io_bytes,
    )


def bandwidth(machine: Machine) -> float | None:
    """Bytes a second to device memory, or None if the chip is not in the table."""
    for capability, sms, least, speed in BANDWIDTH:
        if (machine.capability, machine.sms) == (capability, sms) and machine.memory_gib >= least:
            return speed
    return None


def sm_clock_mhz(result: Result) -> float:
    """Median SM clock while it was timed, or 0 where nobody looked."""
    clocks = sorted(block.sm_mhz for block in result.telemetry if block.sm_mhz)
    return clocks[len(clocks) // 2] if clocks else 0.0


def board_power_w(result: Result) -> float:
    """Median of NVML's power readings, or 0: taken between bursts, so pauses are in it."""
    watts = sorted(block.power_w for block in result.telemetry if block.power_w)
    return watts[len(watts) // 2] if watts else 0.0


def at_clock_pct(result: Result) -> float | None:
    """Percent of the tensor peak at the clock that was read while it was timed."""
    clock = sm_clock_mhz(result)
    problem = get_problem(result.problem)
    floor = ceilings(result.case, result.machine, clock, problem).tensor_ms if clock else None
    return 100 * floor / result.latency_ms if floor and result.latency_ms else None


def limiter(result: Result, resources: Resources | None = None) -> str:
    """The likely limiter, in words."""
    clock = sm_clock_mhz(result)
    told = ceilings(result.case, result.machine, clock, get_problem(result.problem))
    if result.latency_ms is None or told.tensor_ms is None or told.exp_ms is None:
        return "this chip's ceilings are not known"
    if resources and resources.spill_bytes:
        return f"registers: {resources.spill_bytes} bytes spill to memory in every thread"
    tensor, exp = told.tensor_ms / result.latency_ms, told.exp_ms / result.latency_ms
    return _words(tensor, exp, (told.memory_ms or 0) / result.latency_ms, clock or BOOST_MHZ)


def _words(tensor: float, exp: float, memory: float, clock_mhz: float) -> str:
    """The same from the share of the time each unit must be busy at `clock_mhz`.

    That clock is read between bursts, when the load is gone: under a power limit the chip runs slower and its
    units are busier than the shares say.
    """
    if memory > max(tensor, exp):
        return f"device memory: {memory:.0%} of its bandwidth"
    if tensor > 0.8:
        return f"the tensor cores: busy {tensor:.0%} of the time, little is left"
    if exp > 0.8:
        return f"exponentials: the special-function units are busy {exp:.0%} of the time"
    if tensor > 0.65 and tensor > exp:
        return (
            f"the tensor cores or the power limit: products {tensor:.0%} of the time at {clock_mhz:.0f} MHz, "
            f"all of it at {clock_mhz * tensor:.0f}; `run.py profile` counts"
        )
    shares = f"products {tensor:.0%}, exponentials {exp:.0%} of the time"
    if tensor + exp > 1.0:
        return (
            f"both: {shares}; they overlap already, so fewer exponentials or shorter waits are left"
        )
    if tensor + exp > 0.8:
        return f"order: {shares}, nearly one after another; overlap them"
    return f"waiting: {shares}; look at loads, barriers, the diagonal and the last wave"
