"""The Hopper backward on its GPU: are the gradients of every rung right, and how fast is each, in one command.

    python benchmarks/backward_kernel.py                    # all rungs: small shapes, official shapes, times
    python benchmarks/backward_kernel.py --rungs ahead      # one rung
    python benchmarks/backward_kernel.py --no-times
    python benchmarks/backward_kernel.py --compile-only     # needs no GPU: machine code into ATTNBOARD_CACHE

Each rung is checked in a process of its own under a time limit, so that one that hangs or crashes costs
seconds and the others go on. A wrong gradient is described: which of dq, dk, dv, its first wrong tile, which rows and
columns of the tiles, how far a factor would mend it. What was right is then timed, interleaved with SDPA's flash and
cuDNN backward; the table comes last. Inputs of the small shapes and all limits are those of the harness's own gate.
Less than a minute on an H200, most of it starting Python and compiling.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import itertools
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.judge.numerics import Reference, error_of
from harness.problems import attention_backward_tensors as tensors
from harness.problems.attention_backward import PROBLEM
from harness.schema import Case, Claims, Dtype

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "submissions" / "cuda_hopper_backward"
OFFICIAL = {64: (4, 32, 4096, 64), 128: (2, 16, 8192, 128), 256: (1, 8, 16384, 256)}
NAMES = ("dq", "dk", "dv")
LIMITS = PROBLEM.limits(Dtype.FP16)
CHECK_LIMIT_S, TIME_LIMIT_S = 60, 90
MB = 1 << 20
DEVICE = "cuda"
END = "all builds of a headdim"  # a child's line of JSON


def submission() -> Any:
    """The submission's module."""
    spec = importlib.util.spec_from_file_location("backward", FOLDER / "submission.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["backward"] = module
    spec.loader.exec_module(module)
    return module


def builds(module: Any, rung: str, headdim: int) -> dict[str, Any]:
    """Everything that is tried of a rung at one headdim, by name; the first has the rung's plain switches."""
    make = module.Build
    if headdim != {"three": 64, "ahead": 128, "wide": 256}[rung]:
        return {}
    if rung == "wide":
        return {"": make(rung)}
    if rung == "three":
        return {"": make(rung), "section 16 MB": make(rung, (), 16 * MB)}
    return {"": make(rung), "section 8 MB": make(rung, (), 8 * MB)}


def compile_all(rungs: list[str]) -> None:
    """Machine code of every build into the cache, several at a time."""
    module = submission()
    jobs: set[tuple[str, int, tuple[str, ...]]] = {(module.PASSES, d, ()) for d in OFFICIAL}
    for rung, headdim in itertools.product(rungs, OFFICIAL):
        found = builds(module, rung, headdim).values()
        jobs |= {(module.FILES[rung], headdim, build.flags) for build in found}
    begun = time.monotonic()
    context = multiprocessing.get_context("fork")  # this process never touches the GPU
    with context.Pool(min(8, os.cpu_count() or 1)) as pool:
        pool.starmap(_compile, sorted(jobs))
    print(
        f"-- {len(jobs)} programs compiled or cached in {time.monotonic() - begun:.0f} s",
        flush=True,
    )


def _compile(file: str, headdim: int, flags: tuple[str, ...]) -> None:
    """In a worker, which has the parent's modules."""
    sys.modules["backward"].compile_cubin(file, headdim, flags)


# ------------------------------------------------------------------------------------- reference
def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, ...]:
    """o, lse, dq, dk, dv of [heads, S, D] tensors in float64."""
    q, k, v, do = (x.double() for x in (q, k, v, do))
    s = q @ k.transpose(-1, -2) * scale
    if causal:
        s.masked_fill_(
            torch.ones(s.shape[-2:], device=s.device, dtype=torch.bool).triu(1), -math.inf
        )
    lse = s.logsumexp(-1)
    p = (s - lse[..., None]).exp_()
    o = p @ v
    dv = p.transpose(-1, -2) @ do
    ds = p.mul_(do @ v.transpose(-1, -2) - (do * o).sum(-1, keepdim=True))
    return o, lse, ds @ k * scale, ds.transpose(-1, -2) @ q * scale, dv


def small_cases(headdim: int) -> Iterator[tuple[str, tuple[int, ...], bool, float | None]]:
    """(kind of input, shape, causal, scale): from one tile to stress inputs."""
    yield "normal", (1, 1, 64, headdim), False, None
    yield "normal", (1, 1, 128, headdim), False, None
    yield "normal", (1, 1, 128, headdim), True, None
    yield "normal", (1, 1, 512, headdim), False, None
    for seqlen, causal in itertools.product((17, 127, 129, 333, 1000), (True, False)):
        yield "normal", (2, 3, seqlen, headdim), causal, None
    for scale in (1e-4, -0.2, 0.37, 0.0):
        yield "normal", (1, 3, 256, headdim), True, scale
    case = Case(name="c", batch=1, heads=3, seqlen=256, headdim=headdim, dtype=Dtype.FP16)
    for probe in PROBLEM.probes(case, Claims()):
        scale = probe.kwargs["sm_scale"]
        yield probe.distribution, probe.case.shape, probe.case.causal, scale
    yield "normal", (3, 11, 1000, headdim), True, None  # more blocks than multiprocessors, ragged


def inputs(kind: str, shape: tuple[int, ...], seed: int = 1) -> list[torch.Tensor]:
    """q, k, v, do in fp16, one of the distributions of the gate."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    q, k, v, do = (torch.randn(shape, device=DEVICE, generator=generator).half() for _ in range(4))
    return list(tensors.DISTRIBUTIONS[kind]((q, k, v, do), generator))


# ------------------------------------------------------------------------------------ diagnosis
def measure(got: torch.Tensor, want: torch.Tensor) -> tuple[float, float]:
    """Relative L2 error of the whole and of the worst row, as the harness's gate counts them."""
    exact = want.float()
    reference = Reference(contract=exact, exact=exact, scaled=True)
    found = error_of(got.float().nan_to_num(1e6, 1e6, 1e6), reference)
    return found.rel_l2, found.worst_row


def bad_parts(bad: torch.Tensor, step: int) -> str:
    """Which groups of `step` hold most of the wrong, e.g. '0-7 16-23'; 'all' or 'spread' otherwise."""
    share = bad.reshape(-1, step).mean(-1)
    hit = (share > 0.5 * share.max()).tolist()
    if all(hit):
        return "all"
    return " ".join(f"{i * step}-{i * step + step - 1}" for i, h in enumerate(hit) if h)


def describe(name: str, got: torch.Tensor, want: torch.Tensor) -> str:
    """Where [heads, S, D] `got` is wrong: first tile, rows and columns of tiles, a factor, not-a-numbers."""
    error = (got.double() - want).nan_to_num(1e6, 1e6, 1e6)
    heads, seqlen, headdim = got.shape
    tiles = -(-seqlen // 64)
    padded = torch.zeros(heads, tiles * 64, headdim, dtype=torch.float64, device=got.device)
    padded[:, :seqlen] = error.square()
    usual = want.square().mean().clamp_min(1e-18)
    bad = (padded > 1e-3 * usual).double()
    by_tile = bad.reshape(heads, tiles, -1).mean(-1)
    wrong = (by_tile > 0.02).nonzero().tolist()
    clean = got.double().nan_to_num(0, 0, 0)
    factor = float((clean * want).sum() / want.square().sum().clamp_min(1e-18))
    left = float((clean - factor * want).norm() / want.norm().clamp_min(1e-9))
    zeros = float((clean == 0).double().mean())
    text = (
        f"{name}: {len(wrong)} of {heads * tiles} tiles wrong, first (head, tile) {wrong[0] if wrong else '-'}, "
        f"last {wrong[-1] if wrong else '-'}; nan or inf {int((~got.isfinite()).sum())}, zeros {zeros:.0%}; "
        f"times {factor:.3f} would leave {left:.1e}; "
        f"rows of a tile: {bad_parts(bad.reshape(heads, tiles, 64, headdim).mean((0, 1, 3)), 8)}; "
        f"columns: {bad_parts(bad.mean((0, 1)), 8)}"
    )
    if seqlen % 64 == 0 and headdim == 64:
        turned = clean.reshape(heads, tiles, 64, 64).transpose(2, 3).reshape(clean.shape)
        if float((turned - want).norm() / want.norm()) < 0.1:
            text += "; right if tiles are transposed"
    for step in (8, 16, 32, 64):
        for axis, size in ((1, seqlen), (2, headdim)):
            if size % (2 * step) == 0:
                swapped = (
                    clean.unflatten(axis, (-1, 2, step)).flip(axis + 1).flatten(axis, axis + 2)
                )
                if float((swapped - want).norm() / want.norm().clamp_min(1e-9)) < 0.1:
                    text += f"; right if neighbouring {step} {'rows' if axis == 1 else 'columns'} are swapped"
    return text


# ----------------------------------------------------------------------------------- the child: check
def check_case(
    module: Any, build: Any, kind: str, shape: tuple[int, ...], causal: bool, scale: float | None
) -> bool:
    """One small case; prints what is wrong."""
    q, k, v, do = inputs(kind, shape)
    flat = [x.flatten(0, 1) for x in (q, k, v, do)]
    o, lse, *want = reference(*flat, causal, shape[3] ** -0.5 if scale is None else scale)
    got = module.custom_attention_backward(
        q, k, v, o.half().view(shape), lse.float().view(shape[:3]), do, causal, scale, build
    )
    torch.cuda.synchronize()
    return report(f"{kind} {shape} causal={causal} scale={scale}", got, want)


def report(what: str, got: list[torch.Tensor], want: list[torch.Tensor]) -> bool:
    """Whether all three gradients are within the limits; says which are not, and how."""
    right = True
    for name, gradient, w in zip(NAMES, got, want, strict=True):
        g = gradient.flatten(0, 1)
        whole, row = measure(g, w)
        tiny = float(w.abs().max()) < 1e-5  # e.g. scale 0: dq and dk are exactly 0
        if tiny and float(g.abs().max()) < 1e-4:
            continue
        if not (whole < LIMITS.rel_l2 and row < LIMITS.worst_row):
            right = False
            print(f"    WRONG {what}: {name} off by {whole:.1e}, worst row {row:.1e}")
            print(f"      {describe(name, g, w)}")
    return right


def official(headdim: int) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """Inputs of the official shape, o and lse by PyTorch's flash forward."""
    q, k, v, do = inputs("normal", OFFICIAL[headdim], 3)
    o, lse = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, False)[:2]
    return [q, k, v, do], o.contiguous(), lse.contiguous()


def check_official(module: Any, build: Any, headdim: int) -> bool:
    """The official shape, its first and last head; then whether a second call gives the same bits."""
    (q, k, v, do), o, lse = official(headdim)
    got = module.custom_attention_backward(q, k, v, o, lse, do, True, None, build)
    again = module.custom_attention_backward(q, k, v, o, lse, do, True, None, build)
    torch.cuda.synchronize()
    heads = [0, q.shape[0] * q.shape[1] - 1]
    flat = [x.flatten(0, 1)[heads] for x in (q, k, v, do)]
    want = reference(*flat, True, headdim**-0.5)[2:]
    right = report("official", [g.flatten(0, 1)[heads][None] for g in got], want)
    errors = " ".join(
        f"{n} {measure(g.flatten(0, 1)[heads], w)[0]:.1e}/{measure(g.flatten(0, 1)[heads], w)[1]:.1e}"
        for n, g, w in zip(NAMES, got, want, strict=True)
    )
    same = " ".join(n for n, a, b in zip(NAMES, got, again, strict=True) if torch.equal(a, b))
    print(
        f"    official hdim{headdim}: whole/worst row {errors}; same bits twice: {same or 'none'}",
        flush=True,
    )
    return right


def check_rung(rung: str, headdims: list[int]) -> None:
    """The child's work: every build of a rung; a line of JSON for each that is right, one more after each headdim."""
    module = submission()
    for headdim in headdims:
        right: list[str] = []
        for name, build in builds(module, rung, headdim).items():
            if "section" in name:  # the same code, another order
                if f"{rung} {headdim} " in right:
                    print(json.dumps([f"{rung} {headdim} {name}"]), flush=True)
                continue
            begun, failed = time.perf_counter(), 0
            cases = list(small_cases(headdim))
            every = (
                not name or build == module.BUILDS[headdim]
            )  # a switch that is not launched: a third
            for case in cases if every else cases[::3]:
                failed += not check_case(module, build, *case)
                if failed == 3:
                    print("    (three wrong: no more cases of this build)")
                    break
            good = not failed and check_official(module, build, headdim)
            print(
                f"  {rung} hdim{headdim} {name or 'default'}: {'right' if good else 'WRONG'} "
                f"({time.perf_counter() - begun:.1f} s)",
                flush=True,
            )
            if good:
                right.append(f"{rung} {headdim} {name}")
                print(json.dumps(right[-1:]), flush=True)
        print(json.dumps([END]), flush=True)


# ----------------------------------------------------------------------------------- the child: times
def per_call_ms(function: Callable[[], object], calls: int) -> float:
    """Milliseconds of one of `calls` queued calls."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / calls


def rivals(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor
) -> dict[str, Callable[[], object]]:
    """SDPA's backward by backend, through autograd."""
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    found: dict[str, Callable[[], object]] = {}
    for name, backend in (
        ("sdpa cudnn", SDPBackend.CUDNN_ATTENTION),
        ("sdpa flash", SDPBackend.FLASH_ATTENTION),
    ):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        try:
            with sdpa_kernel(backend):
                o = F.scaled_dot_product_attention(*leaves, is_causal=True)
            run = lambda o=o, leaves=leaves: torch.autograd.grad(o, leaves, do, retain_graph=True)  # noqa: E731
            run()
            torch.cuda.synchronize()
            found[name] = run
        except RuntimeError as cause:
            print(f"  {name}: not at headdim {q.shape[3]} ({str(cause).splitlines()[0][:80]})")
    return found


def launch_times(module: Any, build: Any, arguments: list) -> str:
    """Milliseconds of each launch of one call."""
    q, k, v, o, lse, do = arguments
    plan = module.Plan(q, k, v, o, do, True, q.shape[3] ** -0.5, build)
    grads = [torch.empty_like(q) for _ in range(3)]
    stream = torch.cuda.current_stream().cuda_stream
    space = plan.point_at(o, lse, *grads)
    for launch in plan.launches:
        launch(stream)
    assert space
    return " + ".join(
        f"{per_call_ms(lambda launch=launch: launch(stream), 5):.3f}" for launch in plan.launches
    )


def time_all(right: list[str], rounds: int) -> None:
    """The child's work: the table."""
    module = submission()
    table: list[str] = []
    for headdim, shape in OFFICIAL.items():
        (q, k, v, do), o, lse = official(headdim)
        arguments = [q, k, v, o, lse, do]
        functions = rivals(q, k, v, do)
        for rung in module.FILES:
            for name, build in builds(module, rung, headdim).items():
                if f"{rung} {headdim} {name}" in right:
                    functions[f"{rung} {name}".strip()] = functools.partial(
                        module.custom_attention_backward, *arguments, True, None, build
                    )
                    if not name or rung == "wide" or build == module.BUILDS[headdim]:
                        each = launch_times(module, build, arguments)
                        print(f"  hdim{headdim} {rung} {name}: launches {each} ms", flush=True)
        times: dict[str, list[float]] = {name: [] for name in functions}
        for _ in range(rounds):
            for name, function in functions.items():
                function()
                times[name].append(per_call_ms(function, 4))
        flops = 2.5 * 4 * shape[0] * shape[1] * shape[2] ** 2 * shape[3] / 2
        base = statistics.median(times.get("sdpa cudnn") or times["sdpa flash"])
        ours = {name: ms for name, ms in times.items() if not name.startswith("sdpa")}
        if ours:
            print(
                f"  hdim{headdim} fastest: {min(ours, key=lambda name: statistics.median(ours[name]))}"
            )
        for name, values in times.items():
            ms = statistics.median(values)
            table.append(
                f"hdim{headdim:<4}{name:24}{ms:8.3f} ms{flops / ms / 1e9:8.1f} TFLOP/s  x{base / ms:.3f}"
            )
    against = "cuDNN where it runs, else flash"
    print(
        f"backward, fp16 causal, {torch.cuda.get_device_name()}, median of {rounds} rounds; x = against {against}"
    )
    print("\n".join(table))


# ----------------------------------------------------------------------------------------- parent
def child(limit_s: float, *arguments: str) -> tuple[list[list[str]], bool]:
    """(its lines of JSON, whether it ended well) of this script run again; other lines are passed on."""
    process = subprocess.Popen(
        [sys.executable, __file__, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    begun = time.monotonic()
    try:
        text, _ = process.communicate(timeout=limit_s)
        end = f"exit {process.returncode}" if process.returncode else ""
    except subprocess.TimeoutExpired:
        process.kill()
        text, _ = process.communicate()
        end = f"HANGS: killed after {limit_s:.0f} s"
    lines = text.rstrip().splitlines()
    found = [json.loads(line) for line in lines if line.startswith("[")]
    print("\n".join(line for line in lines if not line.startswith("[")))
    seconds = time.monotonic() - begun
    print(f"-- {' '.join(arguments)[:60]}: {end or 'done'} in {seconds:.0f} s", flush=True)
    return found, not end


def check_all(rungs: list[str]) -> list[str]:
    """Names of the builds that are right; a headdim that hangs or crashes does not take the others along."""
    right: list[str] = []
    for rung in rungs:
        left = list(OFFICIAL)
        while left:
            dims = ",".join(map(str, left))
            found, well = child(CHECK_LIMIT_S, "--child-check", rung, "--headdims", dims)
            names = list(itertools.chain.from_iterable(found))
            right += [name for name in names if name != END]
            left = [] if well else left[names.count(END) + 1 :]
    return right


def main() -> None:
    """Check, then time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rungs", default="wide,ahead,three", help="comma list")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-times", action="store_true")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--headdims", default="64,128,256", help=argparse.SUPPRESS)
    parser.add_argument("--child-check", help=argparse.SUPPRESS)
    parser.add_argument("--child-time", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child_check:
        check_rung(options.child_check, [int(d) for d in options.headdims.split(",")])
        return
    if options.child_time:
        time_all(json.loads(options.child_time), options.rounds)
        return
    compile_all(options.rungs.split(","))
    if options.compile_only:
        return
    right = check_all(options.rungs.split(","))
    if not options.no_times:
        child(TIME_LIMIT_S, "--rounds", str(options.rounds), "--child-time", json.dumps(right))


if __name__ == "__main__":
    main()
