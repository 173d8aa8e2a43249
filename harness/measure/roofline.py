"""How near a result is to what the chip can do, and in words what holds it back. Pure arithmetic.

Three ceilings of attention on one chip (FlashAttention-3 paper, section 3.1, argues with the first
two):

    tensor   FLOPs / dense 16-bit peak
    exp      one exponential per score / (SMs · 16 a clock · clock): the special-function units
    memory   arguments read once, results written once / bandwidth
"""

from dataclasses import dataclass
from statistics import median_high

from harness.measure import gpu_specs
from harness.problems import Problem, get_problem
from harness.schema import Case, Machine, Result


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

    def warps_per_sm(self, capability: str) -> int | None:
        """Warps that fit on one SM at a time; None for an unknown capability."""
        if (sm := gpu_specs.SMS.get(capability)) is None:
            return None
        asked = (max(self.threads, gpu_specs.WARP), self.registers, self.shared_bytes)
        return gpu_specs.occupancy(sm, *asked).warps


def ceilings(case: Case, machine: Machine, sm_mhz: float, problem: Problem) -> Ceilings:
    """The three limits at the measured clock, or with 0 at the chip's own."""
    flops, io_bytes = problem.flops(case), problem.io_bytes(case)
    exponentials = problem.exponentials(case)
    mhz = sm_mhz or gpu_specs.boost_mhz(machine) or gpu_specs.USUAL_MHZ
    exps = machine.sms * gpu_specs.EXP_PER_CLOCK * mhz * 1e6  # a second
    peak, speed = gpu_specs.tensor_tflops(machine, mhz), gpu_specs.bandwidth(machine)
    return Ceilings(
        tensor_ms=flops / (peak * 1e12) * 1e3 if peak else None,
        exp_ms=exponentials / exps * 1e3 if exps else None,
        memory_ms=io_bytes / speed * 1e3 if speed else None,
        intensity=flops / io_bytes,
    )


def ceilings_of(result: Result) -> Ceilings:
    """The same of a result, at the clock that was read while it was timed."""
    problem = get_problem(result.problem)
    return ceilings(result.case, result.machine, sm_clock_mhz(result), problem)


def sm_clock_mhz(result: Result) -> float:
    """Median SM clock while it was timed, or 0 where nobody looked."""
    return median_high([block.sm_mhz for block in result.telemetry if block.sm_mhz] or [0.0])


def board_power_w(result: Result) -> float:
    """Median of NVML's power readings, or 0: taken between bursts, so pauses are in it."""
    return median_high([block.power_w for block in result.telemetry if block.power_w] or [0.0])


def at_clock_pct(result: Result) -> float | None:
    """Percent of the tensor peak at the clock that was read while it was timed."""
    floor = ceilings_of(result).tensor_ms if sm_clock_mhz(result) else None
    return 100 * floor / result.latency_ms if floor and result.latency_ms else None


def limiter(result: Result, resources: Resources | None = None) -> str:
    """The likely limiter, in words."""
    clock, told = sm_clock_mhz(result), ceilings_of(result)
    if result.latency_ms is None or told.tensor_ms is None or told.exp_ms is None:
        return "this chip's ceilings are not known"
    if resources and resources.spill_bytes:
        return f"registers: {resources.spill_bytes} bytes spill to memory in every thread"
    limits_ms = (told.tensor_ms, told.exp_ms, told.memory_ms or 0)
    tensor, exp, memory = (limit_ms / result.latency_ms for limit_ms in limits_ms)
    mhz = clock or gpu_specs.boost_mhz(result.machine) or gpu_specs.USUAL_MHZ
    return _limiter_text(tensor, exp, memory, mhz)


def _limiter_text(tensor: float, exp: float, memory: float, clock_mhz: float) -> str:
    """The same from the share of the time each unit must be busy at `clock_mhz`.

    That clock is read between bursts, when the load is gone: under a power limit the chip runs
    slower and its units are busier than the shares say.
    """
    if memory > max(tensor, exp):
        return f"device memory: {memory:.0%} of its bandwidth"
    if tensor > 0.8:
        return f"the tensor cores: busy {tensor:.0%} of the time, little is left"
    if exp > 0.8:
        return f"exponentials: the special-function units are busy {exp:.0%} of the time"
    if tensor > 0.65 and tensor > exp:
        return (
            f"the tensor cores or the power limit: products {tensor:.0%} of the time at "
            f"{clock_mhz:.0f} MHz, all of it at {clock_mhz * tensor:.0f}; `run.py profile` counts"
        )
    shares = f"products {tensor:.0%}, exponentials {exp:.0%} of the time"
    if tensor + exp > 1.0:
        return (
            f"both: {shares}; they overlap already, so fewer exponentials or shorter waits are left"
        )
    if tensor + exp > 0.8:
        return f"order: {shares}, nearly one after another; overlap them"
    return f"waiting: {shares}; look at loads, barriers, the diagonal and the last wave"
