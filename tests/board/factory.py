"""Results that look like an H200's, drawn from a seed: what the tests of the board are made of."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness.board.record import BadLine, Head, file_name, heads, read, to_line
from harness.measure import stats
from harness.measure.verdict import speedup_of
from harness.schema import Case, Error, Kind, Machine, Result, Sample, Status, Sustained, Telemetry
from harness.schema.mismatch import Draw, Mismatch
from tests.house import count

H200 = Machine(
    gpu="NVIDIA H200",
    uuid="GPU-0",
    sms=132,
    capability="9.0",
    memory_gib=140.0,
    power_limit_w=700.0,
    driver="580.159",
    cuda="13.0",
    torch="2.11.0+cu130",
    triton="3.6.0",
    python="3.12.3",
)
CPU = Machine(torch="2.13.0", triton="3.7.1", python="3.11.7", cpu="x86")
CASES = {
    "hdim64_seq4k": Case(name="hdim64_seq4k", batch=4, heads=32, seqlen=4096, headdim=64),
    "hdim128_seq8k": Case(name="hdim128_seq8k", batch=2, heads=16, seqlen=8192, headdim=128),
    "hdim256_seq16k": Case(name="hdim256_seq16k", batch=1, heads=8, seqlen=16384, headdim=256),
}
BASE_MS = {"hdim64_seq4k": 0.66, "hdim128_seq8k": 0.98, "hdim256_seq16k": 1.76}
NOISE = {"hdim64_seq4k": 0.002, "hdim128_seq8k": 0.009, "hdim256_seq16k": 0.003}
SUITE_SHA = "5" * 64


def forged(told: Result, **changes: object) -> str:
    """A line with a good checksum that says what no harness wrote."""
    return of_fields(json.loads(to_line(told)) | changes)


def of_fields(fields: dict[str, object]) -> str:
    """A line of these, in their order, with a good checksum."""
    rest = {key: value for key, value in fields.items() if key != "crc32"}
    body = json.dumps(rest, separators=(",", ":"))[:-1]
    return f'{body},"crc32":"{zlib.crc32(body.encode()):08x}"}}\n'


def flops(case: Case) -> float:
    """4·B·S²·H·D, halved when causal."""
    full = 4 * case.batch * case.seqlen**2 * case.heads * case.headdim
    return full / 2 if case.causal else full


def times(
    rng: np.random.Generator, scale_ms: float, noise: float, shared: np.ndarray
) -> dict[int, float]:
    """Block → latency: lognormal noise on top of what the block did to everybody."""
    own = rng.normal(0, noise, len(shared))
    return {
        block: scale_ms * float(np.exp(shared[block] + own[block])) for block in range(len(own))
    }


def record_files(results: Iterable[Result]) -> dict[Path, str]:
    """The file that a run writes, as page.Files has it."""
    return {r.path: f"{r.machine.slug}/{file_name(r.date, r.suite, r.run)}" for r in results}


def result(entry: str = "mine", config: str = "hdim64_seq4k", **changes: Any) -> Result:
    """One PASSED result; `changes` replace fields. Another status takes the times away."""
    case = CASES[config]
    fields: dict[str, Any] = {
        "run": "r1",
        "date": "2026-11-21",
        "entry": entry,
        "kind": Kind.SUBMISSION,
        "language": "triton",
        "author": "somebody",
        "suite": "fa3",
        "config": config,
        "status": Status.PASSED,
        "numerics_class": "exact",
        "tflops": 412.5,
        "latency_ms": 0.666,
        "p10_ms": 0.66,
        "p90_ms": 0.67,
        "peak_pct": 41.7,
        "max_diff": 1.2e-3,
        "correct": 1,
        "gpu": H200.gpu,
        "blocks": 20,
        "integrity": "judged/1",
        "error": Error(max_diff=1.2e-3, rel_l2=2.9e-4, worst_row=6e-4, finite=True),
        "case": case,
        "source_sha256": "a" * 64,
        "suite_sha256": SUITE_SHA,
        "harness_commit": "c" * 40,
        "protocol": 1,
        "machine": H200,
        **changes,
    }
    if fields["status"] is not Status.PASSED:
        timed = ("tflops", "latency_ms", "p10_ms", "p90_ms", "peak_pct", "speedup")
        fields.update(dict.fromkeys(timed), correct=0)
    return Result(**fields)


def run_of(
    factors: Mapping[str, float],
    *,
    seed: int = 0,
    blocks: int = 20,
    run: str = "r1",
    baselines: tuple[str, ...] = ("sdpa_cudnn", "sdpa_flash"),
    configs: tuple[str, ...] = tuple(CASES),
    **changes: Any,
) -> list[Result]:
    """One run: every entry of `factors` (time = factor × sdpa_cudnn's) beside sdpa_cudnn."""
    rng = np.random.default_rng(seed)
    results = []
    for config in configs:
        shared = np.cumsum(rng.normal(0, 0.004, blocks))
        base = times(rng, BASE_MS[config], NOISE[config], shared)
        for entry, factor in {"sdpa_cudnn": 1.0, **factors}.items():
            told = (
                base
                if entry == "sdpa_cudnn"
                else times(rng, BASE_MS[config] * factor, NOISE[config], shared)
            )
            kind = Kind.BASELINE if entry in baselines else Kind.SUBMISSION
            results.append(timed(entry, config, kind, told, base, run=run, **changes))
    return results


def timed(
    entry: str,
    config: str,
    kind: Kind,
    told: Mapping[int, float],
    base: Mapping[int, float],
    **changes: Any,
) -> Result:
    """One PASSED result with its samples, scored against `base`."""
    case = CASES[config]
    middle = stats.summary(list(told.values()))
    ratio = stats.speedup(base, told)
    tflops = flops(case) / middle.median / 1e9
    fields: dict[str, Any] = {
        "kind": kind,
        "language": "pytorch" if kind is Kind.BASELINE else "triton",
        "tflops": tflops,
        "latency_ms": middle.median,
        "p10_ms": middle.p10,
        "p90_ms": middle.p90,
        "peak_pct": tflops / 9.89,
        "speedup": ratio and speedup_of("sdpa_cudnn", ratio),
        "blocks": len(told),
        "samples": tuple(
            Sample(block=b, calls_ms=(ms * 0.99, ms * 1.01, ms, ms), t2_ms=4 * ms + 0.4)
            for b, ms in told.items()
        ),
        "telemetry": tuple(
            Telemetry(sm_mhz=1755 + b % 3 * 15, mem_mhz=3201, power_w=640.0, temperature_c=55)
            for b in told
        ),
        "kernels": (f"{entry}_kernel",),
        **changes,
    }
    return result(entry, config, **fields)


def stretch(ms: float, watts: float = 660.0, config: str = "hdim64_seq4k") -> Sustained:
    """What lasts: `ms` a call at `watts`."""
    joules = watts * ms / 1e3
    return Sustained(
        status=Status.PASSED,
        calls=2000,
        checked=48,
        latency_ms=ms,
        claimed_ms=ms,
        tflops=flops(CASES[config]) / ms / 1e9,
        judge_pct=0.25,
        clock_mhz=1500,
        power_w=watts,
        joules_per_call=joules,
        pj_per_flop=1e12 * joules / flops(CASES[config]),
        energy_error_pct=0.5,
    )


def committed() -> list[Head]:
    """The lines of this checkout's records but those of strangers, whom no test of ours holds."""
    ours = {folder.name for folder in (*count.ours(), *(count.ROOT / "baselines").iterdir())}
    lines, _ = heads(count.ROOT / "results")
    return [line for line in lines if line.entry.partition("/")[0] in ours]


def load(folder: Path) -> tuple[list[Result], list[BadLine]]:
    """Every row below `folder`, in order of file and line; the lines that are none."""
    found, bad = heads(folder)
    rows, worse = read(found)
    return rows, sorted([*bad, *worse], key=lambda line: (str(line.path), line.number))


def mismatch() -> Mismatch:
    """Half of head 2 of batch 1 is wrong, on a probe of 2x3 heads and 128 rows."""
    kwargs: dict[str, bool | float | None] = {"causal": True, "sm_scale": None}
    draw = Draw(
        label="check/hdim64_seq4k/submission/mine/1f",
        distribution="normal",
        shape=(2, 3, 128, 64),
        kwargs=kwargs,
        calls=2,
        whole=True,
    )
    return Mismatch(
        draw=draw,
        output="o",
        call=1,
        wrong_calls=2,
        wrong_outputs=("o",),
        wrong=4096,
        elements=49152,
        index=(1, 2, 70, 3),
        expected=0.25,
        got=float("nan"),
        heads=(5, 5),
        wrong_heads=1,
        rows=(64, 127),
        wrong_rows=64,
        columns=(0, 63),
        picture=("0" * 64,) * 5 + ("0" * 32 + "9" * 32,),
        heads_a_line=1,
        rows_a_mark=2,
        inputs_sha256="b" * 64,
    )
