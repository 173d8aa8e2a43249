"""Builds of cuda_hopper_backward on the paper's grid against FlashAttention-3, -4 and cuDNN, in one process.

    python benchmarks/backward_grid.py                                # headdim 64, what the submission launches
    python benchmarks/backward_grid.py --build "plain=three" --build "wide=three section=64"
    python benchmarks/backward_grid.py --seqlens 512,4096 --masks causal --rounds 9 --launches
    ncu --clock-control none -k regex:backward python benchmarks/backward_grid.py --once 4096:causal

Each build is checked against float64 first, on the small shapes of backward_kernel.py and on two heads of every cell; a wrong
one is described and not timed. A cell: 16,384 tokens, hidden size 2,048, fp16, randn. Every kernel has its turn in each round; a turn is
--calls calls on rotating inputs, 160 MiB written before each, events around each. Median over rounds of the turn's median.
A build is `name=rung flag ... [section=MB] [lead=SECTIONS] [cleared=SECTIONS] [cuts]`.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import itertools
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import backward_kernel as kernel
import torch

ROOT = Path(__file__).resolve().parents[1]
TOKENS, HIDDEN = 16384, 2048
LIBRARIES = {"fa3": "flash_attn_3_backward", "fa4": "flash_attn_4_backward"}
FLUSH_BYTES = 160 << 20
INPUTS = 3
Call = Callable[[int], Any]


def parse_build(module: Any, text: str) -> tuple[str, Any]:
    """`name=rung flag ... [section=MB] [lead=SECTIONS] [cleared=SECTIONS] [cuts]` -> name and Build."""
    name, _, rest = text.partition("=")
    rung, *words = rest.split() or [""]
    if rung not in module.FILES:
        raise SystemExit(
            f"--build {text!r}: no rung {rung!r}; type --build 'name=RUNG -DFLAG=1 section=MB' "
            f"with RUNG one of {', '.join(module.FILES)}"
        )
    build = module.Build(rung)
    for word in words:
        key, _, value = word.partition("=")
        if key == "section" and value.isdigit():
            build = build._replace(section_bytes=int(value) << 20)
        elif key in ("lead", "cleared") and value.isdigit():
            build = build._replace(**{key: int(value)})
        elif key.startswith("-D"):
            build = build._replace(flags=(*build.flags, word))
        elif word == "cuts":
            build = build._replace(cuts=True)
        else:
            raise SystemExit(
                f"--build {text!r}: {word!r} is neither a flag nor a section; type -DNAME=VALUE, "
                "section=16 (in MB), lead=2 or cleared=1 (in sections) or cuts"
            )
    return name, build


def libraries(wanted: list[str]) -> dict[str, Callable[..., Any]]:
    """Backward functions of the packages that can be imported."""
    found = {}
    for name in wanted:
        path = ROOT / "baselines" / LIBRARIES[name] / "submission.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except ImportError as cause:
            print(f"-- {name} is left out: {str(cause).splitlines()[0][:120]}")
            continue
        found[name] = module.custom_attention_backward
    return found


class Cell:
    """Inputs of one cell, INPUTS times."""

    def __init__(self, headdim: int, seqlen: int, causal: bool) -> None:
        self.shape = (TOKENS // seqlen, HIDDEN // headdim, seqlen, headdim)
        self.causal = causal
        self.sets = []
        for seed in range(INPUTS):
            generator = torch.Generator("cuda").manual_seed(seed)
            q, k, v, do = (
                torch.randn(self.shape, device="cuda", generator=generator).half() for _ in range(4)
            )
            flash = torch.ops.aten._scaled_dot_product_flash_attention
            o, lse = flash(q, k, v, 0.0, causal, False)[:2]
            self.sets.append((q, k, v, o.contiguous(), lse.contiguous(), do))

    @property
    def flops(self) -> float:
        """Five products, half of them if causal."""
        b, h, s, d = self.shape
        return 10 * b * h * s * s * d / (2 if self.causal else 1)

    def cudnn(self) -> Call:
        """SDPA's cuDNN backward, through autograd."""
        import torch.nn.functional as F
        from torch.nn.attention import SDPBackend, sdpa_kernel

        graphs = []
        for q, k, v, _o, _lse, do in self.sets:
            leaves = [x.detach().requires_grad_() for x in (q, k, v)]
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                o = F.scaled_dot_product_attention(*leaves, is_causal=self.causal)
            graphs.append((o, leaves, do))

        def run(i: int) -> Any:
            o, leaves, do = graphs[i]
            return torch.autograd.grad(o, leaves, do, retain_graph=True)

        return run

    def call(self, function: Callable[..., Any]) -> Call:
        """A function of (q, k, v, o, lse, do, causal, scale) on set i."""
        return lambda i: function(*self.sets[i], self.causal, None)

    def right(self, what: str, call: Call) -> bool:
        """Two heads of the last set against float64."""
        q, k, v, _o, _lse, do = self.sets[-1]
        got = call(INPUTS - 1)
        heads = [0, q.shape[0] * q.shape[1] - 1]
        flat = [x.flatten(0, 1)[heads] for x in (q, k, v, do)]
        good = True
        for i, head in enumerate(heads):
            one = [x[i : i + 1] for x in flat]
            want = kernel.reference(*one, self.causal, q.shape[3] ** -0.5)[2:]
            mine = [g.flatten(0, 1)[head][None, None] for g in got]
            good &= kernel.report(f"{what} {self.shape} causal={self.causal}", mine, list(want))
        return good


def turn_ms(call: Call, calls: int, flush: torch.Tensor) -> float:
    """Median of `calls` calls, each after a flush, all queued behind a pause."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
    torch.cuda._sleep(4_000_000)
    for i, (start, end) in enumerate(events):
        flush.fill_(i)
        start.record()
        call(i % INPUTS)
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events)


def time_cell(
    cell: Cell, calls: dict[str, Call], rounds: int, each: int, flush: torch.Tensor
) -> dict[str, float]:
    """Milliseconds a call of every kernel."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(2):
        for call in calls.values():
            for i in range(INPUTS):
                call(i)
    torch.cuda.synchronize()
    for turn in range(rounds):
        names = list(calls)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            times[name].append(turn_ms(calls[name], each, flush))
    return {name: statistics.median(ms) for name, ms in times.items()}


def launch_ms(module: Any, build: Any, cell: Cell, flush: torch.Tensor) -> str:
    """Milliseconds of each launch of a call, each timed by itself after a flush."""
    q, k, v, o, lse, do = cell.sets[0]
    build = build or module.build_for(q.shape[3], q.shape[2], cell.causal)
    plan = module.Plan(q, k, v, o, do, cell.causal, q.shape[3] ** -0.5, build)
    grads = [torch.empty_like(q) for _ in range(3)]
    stream = torch.cuda.current_stream().cuda_stream
    space = plan.point_at(o, lse, *grads)
    assert space
    return " + ".join(
        f"{turn_ms(lambda _i, launch=launch: launch(stream), 7, flush):.3f}"
        for launch in plan.launches
    )


def check_small(module: Any, builds: dict[str, Any], headdim: int) -> dict[str, Any]:
    """The builds that are right on every small shape."""
    good = {}
    for name, build in builds.items():
        cases = list(kernel.small_cases(headdim))
        failed = 0
        for case in cases:
            failed += not kernel.check_case(module, build, *case)
            if failed == 3:
                break
        print(
            f"-- {name}: {'WRONG' if failed else 'right'} on {len(cases)} small cases", flush=True
        )
        if not failed:
            good[name] = build
    return good


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--headdim", type=int, default=64, choices=(64, 128, 256))
    parser.add_argument("--build", action="append", default=[], help="name=rung flag ...")
    parser.add_argument("--seqlens", default="512,1024,2048,4096,8192,16384")
    parser.add_argument("--masks", default="causal,full")
    parser.add_argument("--rivals", default="fa3,fa4,cudnn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--launches", action="store_true", help="each launch of a call by itself")
    parser.add_argument("--no-check", action="store_true", help="small shapes are not checked")
    parser.add_argument("--once", help="seqlen:mask; one call of each build and nothing else")
    return parser.parse_args()


def chosen_builds(module: Any, texts: list[str]) -> dict[str, Any]:
    """Builds by name; None stands for what the submission chooses for a shape."""
    return dict(parse_build(module, text) for text in texts) if texts else {"submission": None}


def main() -> None:
    """Check, time, print a table."""
    options = arguments()
    module = kernel.submission()
    builds = chosen_builds(module, options.build)
    runs = {
        name: functools.partial(module.custom_attention_backward, build=build)
        for name, build in builds.items()
    }
    if options.once:
        seqlen, mask = options.once.split(":")
        cell = Cell(options.headdim, int(seqlen), mask == "causal")
        for run in runs.values():
            cell.call(run)(0)
            torch.cuda.synchronize()
        return
    if not options.no_check:
        builds = check_small(module, builds, options.headdim)
    rivals = options.rivals.split(",")
    found = libraries([name for name in rivals if name in LIBRARIES])
    flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    for mask, seqlen in itertools.product(
        options.masks.split(","), map(int, options.seqlens.split(","))
    ):
        cell = Cell(options.headdim, seqlen, mask == "causal")
        calls = {name: cell.call(function) for name, function in found.items()}
        if "cudnn" in rivals:
            calls["cudnn"] = cell.cudnn()
        for name in builds:
            call = cell.call(runs[name])
            if cell.right(name, call):
                calls[name] = call
        times = time_cell(cell, calls, options.rounds, options.calls, flush)
        best = min((ms for name, ms in times.items() if name not in builds), default=None)
        row = "  ".join(
            f"{name} {cell.flops / ms / 1e9:.0f}"
            + (f" x{best / ms:.3f}" if name in builds and best else "")
            for name, ms in times.items()
        )
        print(f"{mask:6} {seqlen:5}  {row}", flush=True)
        if options.launches:
            for name, build in builds.items():
                print(f"    {name}: {launch_ms(module, build, cell, flush)} ms", flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
