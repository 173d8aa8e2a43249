"""What bounds a kernel: Nsight Compute's counters and one sentence; cli/ draws the picture.

Without ncu, or without permission to read counters, `explain_missing` says so and the static data
of `resources` stays.
"""

import csv
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLS = {
    "barrier": "a block-wide or named barrier",
    "branch_resolving": "a branch to be resolved",
    "dispatch_stall": "the dispatcher",
    "gmma": "wgmma",
    "imc_miss": "a constant-cache miss",
    "lg_throttle": "room in the queue of global-memory instructions",
    "long_scoreboard": "global memory",
    "math_pipe_throttle": "a busy arithmetic pipe",
    "membar": "a memory barrier",
    "mio_throttle": "room in the queue of shared-memory and special instructions",
    "no_instruction": "the next instruction to be fetched",
    "short_scoreboard": "shared memory or the exponential unit",
    "sleeping": "the end of a sleep",
    "wait": "the fixed latency of the last instruction",
}
_DURATION = "gpu__time_duration.sum"
_ACTIVE = "avg.pct_of_peak_sustained_active"
_ELAPSED = "avg.pct_of_peak_sustained_elapsed"
#: A unit's use in %, by its field of a Profile: what the page calls the unit, what the sentence
#: does (nothing: no limiter), the metrics of which the largest counts.
_USES = {
    "tensor_pct": (
        *("tensor pipe", "the tensor pipe", f"sm__pipe_tensor_op_hmma_cycles_active.{_ACTIVE}"),
        f"sm__inst_executed_pipe_tensor_op_gmma.{_ACTIVE}",
    ),
    "exp_pct": ("exponential unit", "the exponential unit", f"sm__inst_executed_pipe_xu.{_ACTIVE}"),
    "issue_pct": ("issue slots", "instruction issue", f"smsp__issue_active.{_ACTIVE}"),
    "occupancy_pct": ("achieved occupancy", "", f"sm__warps_active.{_ACTIVE}"),
    "l1_pct": ("L1 and shared memory", "L1 and shared memory", f"l1tex__throughput.{_ACTIVE}"),
    "l2_pct": ("L2", "L2", f"lts__throughput.{_ELAPSED}"),
    "dram_pct": ("DRAM", "DRAM", f"dram__cycles_active.{_ELAPSED}"),
}
#: What is counted, by its field of a Profile: the metrics that are added.
_COUNTS = {
    "dram_bytes": ("dram__bytes_read.sum", "dram__bytes_write.sum"),
    "shared_wavefronts": ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",),
    "shared_conflicts": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",),
    "registers": ("launch__registers_per_thread",),
    "spill_instructions": tuple(f"smsp__sass_inst_executed_op_local_{x}.sum" for x in ("ld", "st")),
}
METRICS = (
    _DURATION,
    *(metric for _, _, *metrics in _USES.values() for metric in metrics),
    *(metric for metrics in _COUNTS.values() for metric in metrics),
    *("launch__block_size", "launch__grid_size"),
    *(_STALL.format(stall) for stall in STALLS),
)
_SECONDS = {"ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3,
            "s": 1.0, "second": 1.0}  # fmt: skip
_BYTES = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


@dataclass(frozen=True)
class Profile:
    """Counters of one kernel launch; a counter that ncu did not give is None."""

    kernel: str
    duration_us: float
    #: Busy cycles of the tensor pipe, in % of the cycles in which the multiprocessor had work.
    tensor_pct: float | None = None
    exp_pct: float | None = None  # use of the special-function unit (ex2), in %
    issue_pct: float | None = None
    occupancy_pct: float | None = None
    l1_pct: float | None = None  # use of L1 and shared memory, in %
    l2_pct: float | None = None
    dram_pct: float | None = None
    dram_bytes: float | None = None
    shared_wavefronts: float | None = None
    shared_conflicts: float | None = None
    registers: float | None = None
    spill_instructions: float | None = None  # executed loads and stores of local memory
    #: (reason, mean warps stalled for it per issued instruction), largest first.
    stalls: tuple[tuple[str, float], ...] = ()


class ProfileUnavailableError(Exception):
    """No counters here; the message says why and what to do."""


def run_ncu(
    command: Sequence[str], kernel_regex: str = ".*", timeout_s: float = 300.0, **where: Any
) -> str:
    """Runs `command` under ncu and returns the raw CSV page; clocks are left as they are.

    Launches between cudaProfilerStart and cudaProfilerStop that match `kernel_regex` are replayed
    once per pass of counters. Raises ProfileUnavailableError when ncu or the permission is missing.
    """
    if (ncu := shutil.which("ncu")) is None:
        raise ProfileUnavailableError(explain_missing(""))
    arguments = [
        ncu, "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base",
        "--profile-from-start", "off", "--kernel-name", f"regex:{kernel_regex}",
        "--metrics", ",".join(METRICS), *command,
    ]  # fmt: skip
    try:
        done: subprocess.CompletedProcess[str] = subprocess.run(
            arguments,
            capture_output=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            **where,
        )
    except subprocess.TimeoutExpired:
        said = f"ncu was stopped after {timeout_s:.0f} s; profile a smaller case"
        raise ProfileUnavailableError(said) from None
    text = done.stdout + done.stderr
    if done.returncode or "ERR_NVGPUCTRPERM" in text or "No kernels were profiled" in text:
        raise ProfileUnavailableError(explain_missing(text))
    return done.stdout


def explain_missing(text: str) -> str:
    """Why there are no counters, from what ncu said, and what to type next."""
    if not text:
        return (
            "ncu is not on PATH, so there are no counters; the static report follows. "
            "Install Nsight Compute (it comes with the CUDA toolkit)"
        )
    if "ERR_NVGPUCTRPERM" in text:
        return (
            "the driver does not let this user read counters (ERR_NVGPUCTRPERM); the static report "
            "follows. Ask for the module option NVreg_RestrictProfilingToAdminUsers=0, or run as "
            "root"
        )
    if "No kernels were profiled" in text:
        return "no kernel matched; check the name with: python run.py build NAME"
    errors = [line for line in text.splitlines() if line.startswith("==ERROR==")]
    return "ncu failed: " + (" ".join(errors[:3]) or text.strip()[-300:])


def parse_ncu(text: str) -> list[Profile]:
    """One Profile per launch of ncu's `--csv --page raw`; lines before the header are skipped."""
    rows = list(csv.reader([line for line in text.splitlines() if line.startswith('"')]))
    if len(rows) < 3 or "Kernel Name" not in rows[0]:
        raise ValueError("not a raw CSV page of ncu: no header with 'Kernel Name'")
    header, units = rows[0], dict(zip(rows[0], rows[1], strict=False))
    return [_profile(dict(zip(header, row, strict=False)), units) for row in rows[2:]]


def _profile(row: dict[str, str], units: dict[str, str]) -> Profile:
    def number(metric: str) -> float | None:
        try:
            value = float(row.get(metric, "").replace(",", ""))
        except ValueError:  # absent, empty, "no data", "n/a"
            return None
        return value * _BYTES.get(units.get(metric, ""), 1.0)

    def known(metrics: Iterable[str]) -> list[float]:
        return [value for value in map(number, metrics) if value is not None]

    duration = float(row[_DURATION].replace(",", "")) * _SECONDS.get(units.get(_DURATION, ""), 1e-9)
    found = ((stall, number(_STALL.format(stall))) for stall in STALLS)
    stalls = [(stall, value) for stall, value in found if value]
    uses = {field: max(known(metrics), default=None) for field, (_, _, *metrics) in _USES.items()}
    counted = {field: known(metrics) for field, metrics in _COUNTS.items()}
    return Profile(
        kernel=short_name(row["Kernel Name"]),
        duration_us=duration * 1e6,
        stalls=tuple(sorted(stalls, key=lambda pair: -pair[1])),
        **uses,
        **{field: sum(values) if values else None for field, values in counted.items()},
    )


def short_name(signature: str) -> str:
    """`void f<64, 1>(const __half *, int)` -> `f<64, 1>`."""
    text = re.sub(r"\((?:anonymous namespace)\)::|<unnamed>::", "", signature).removeprefix("void ")
    return re.sub(r"\((?:[^()]|\([^()]*\))*\)$", "", text)


def limiter(profile: Profile) -> str:
    """One sentence that names the likely limiter and the number it rests on."""
    units = [(name, getattr(profile, field)) for field, (_, name, *_) in _USES.items() if name]
    if not (known := [(name, value) for name, value in units if value is not None]):
        return "No unit's use was measured, so no limiter can be named."
    name, value = max(known, key=lambda pair: pair[1])
    if value >= 80:
        return f"Bound by {name}: {value:.0f} % of what it can do."
    why = ""
    if profile.stalls:
        stall, warps = profile.stalls[0]
        why = f"; warps mostly wait for {STALLS[stall]} ({stall}, {warps:.1f} warps per issue)"
    if value >= 60:
        return f"Mostly bound by {name}, {value:.0f} % used{why}."
    occupancy = profile.occupancy_pct
    few = f" at {occupancy:.0f} % occupancy" if occupancy is not None and occupancy < 25 else ""
    return f"Bound by latency{few}: the busiest unit, {name}, is {value:.0f} % used{why}."


def render(profiles: Iterable[Profile]) -> str:
    """A block of lines per kernel, the sentence last."""
    blocks = []
    for p in profiles:
        pairs: list[tuple[str, Any]] = [
            ("duration", f"{p.duration_us:.1f} us"),
            *((label, _told(getattr(p, key), "{:.1f} %")) for key, (label, *_) in _USES.items()),
            ("DRAM traffic", _told(p.dram_bytes and p.dram_bytes / 1e6, "{:.1f} MB")),
            ("registers", _told(p.registers)),
            ("local-memory instructions", _told(p.spill_instructions)),
            ("shared-memory conflicts", _conflicts(p)),
        ]
        lines = [p.kernel, *(f"  {name:<26}{value:>12}" for name, value in pairs)]
        lines += [
            f"  stall {warps:5.2f} warps per issue: {stall} ({STALLS[stall]})"
            for stall, warps in p.stalls[:3]
        ]
        blocks.append("\n".join([*lines, "  " + limiter(p)]))
    return "\n\n".join(blocks)


def _told(value: float | None, form: str = "{:,.0f}") -> str:
    return "?" if value is None else form.format(value)


def _conflicts(profile: Profile) -> str:
    if profile.shared_conflicts is None or not profile.shared_wavefronts:
        return _told(profile.shared_conflicts)
    return f"{100 * profile.shared_conflicts / profile.shared_wavefronts:.1f} % of wavefronts"
