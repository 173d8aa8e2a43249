"""Entries per minute on 1, 2 and 4 GPUs of one host, and whether a ratio depends on how many there are.

    python benchmarks/many_gpus.py                                  # 1, 2, 4 GPUs, 32 submissions, some minutes
    python benchmarks/many_gpus.py --gpus 1,2 --count 8 --suite SUITE --out FILE.md
    python benchmarks/many_gpus.py --cpu --count 4 --gpus 1,2       # a rehearsal; its figures mean nothing
    python benchmarks/many_gpus.py --contexts --gpus 1,2            # only how long the driver takes for contexts

The same generated submissions (`generate`: SDPA over 1, 2, 4 or 8 groups of heads)
run as one campaign for every count, each with a cache of its own. Of every entry and config the ratio over
the baseline is compared with that of the first campaign: it has changed if the quotient of the two paired
ratios, with its interval, leaves out 1. Two cards of one kind need not have the same ratios, so those that came
from the same GPU again and those that came from another are told apart.

An A/A comparison at the same level finds its share of "changed" by chance (intervals are 95 %), so the
first campaign is run once more at the end and told beside the others (--no-again leaves that out).
Every row ends in --results, every finished count in --out: a run that is cut short keeps what it has.

--contexts: 10 and 20 processes, forked before any of them touches the driver, are let go by one event; the
figure counts from there until the last has its CUDA context and 512 MiB.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness.board import record  # noqa: E402
from harness.board.rank import interval_of  # noqa: E402
from harness.campaign.campaign import Campaign  # noqa: E402
from harness.campaign.local import Local  # noqa: E402
from harness.campaign.node import choose_gpus, machine_of  # noqa: E402
from harness.campaign.unit import plan_units  # noqa: E402
from harness.catalog.request import Request, resolve  # noqa: E402
from harness.catalog.suites import load_suite  # noqa: E402
from harness.cli.campaign_view import CampaignView  # noqa: E402
from harness.measure import stats  # noqa: E402
from harness.schema import Kind, Result, Status, Suite  # noqa: E402

Ratios = dict[tuple[str, str], tuple[stats.Interval, str]]  # the ratio, and the uuid of its GPU
FLASH = "sdpa_flash"
NEEDED = {2: 1.9, 4: 3.6}  # what a host with so many GPUs should give
CONTEXTS, CONTEXT_BYTES, PATIENCE_S = (10, 20), 512 << 20, 60


GROUPS = (1, 2, 4, 8)
TORCH = '''\
"""Attention over {groups} groups of heads, one after the other (generated)."""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
GROUPS, VARIANT = {groups}, {number}


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    """q, k, v: (batch, nheads, seqlen, headdim) → the same shape."""
    parts = zip(*(t.chunk(min(GROUPS, t.shape[1]), dim=1) for t in (q, k, v)))
    with sdpa_kernel(BACKENDS):  # not cuDNN: it would build a plan for every shape of every unit
        outs = [F.scaled_dot_product_attention(*p, is_causal=causal, scale=sm_scale) for p in parts]
    return outs[0] if len(outs) == 1 else torch.cat(outs, dim=1)
'''
MANIFEST = """\
name: {name}
author: generator
description: {description}
language: pytorch
"""


class Phases(CampaignView):
    """The view, and how long a unit takes to its first block and from there to its end."""

    def __init__(self) -> None:
        super().__init__(quiet_stdout=True)
        self.first_block: dict[str, float] = {}
        self.startup_s: list[float] = []
        self.timed_s: list[float] = []

    def heard(self, label: str, message: Mapping[str, object]) -> None:
        """Note the first block."""
        if message.get("op") == "block" and label in self.running:
            self.first_block.setdefault(label, time.monotonic())
        super().heard(label, message)

    def ended(self, label: str, why: str, again: int) -> None:
        """Two durations, if it came so far."""
        unit, first = self.running.get(label), self.first_block.pop(label, None)
        if unit and first and not why:
            self.startup_s.append(first - unit.since)
            self.timed_s.append(time.monotonic() - first)
        super().ended(label, why, again)


def main() -> int:
    """One campaign for every count of GPUs, then the table."""
    args = parse()
    if args.contexts:
        for gpus in (choose_gpus(int(word)) for word in args.gpus.split(",")):
            for count in CONTEXTS:
                told = f"{count} contexts on {len(gpus)} GPUs"
                print(f"{told}: all in {contexts_s(count, gpus):.2f} s", flush=True)
        return 0
    suite = load_suite(args.suite or ("smoke" if args.cpu else "quick"), ROOT / "configs")
    suite = suite.model_copy(update={"blocks": args.blocks} if args.blocks else {})
    if not (args.cpu or args.suite):  # cuDNN would build a plan for every shape in every unit
        suite = suite.model_copy(update={"against": FLASH, "baselines": (FLASH,)})
    counts = [int(word) for word in args.gpus.split(",")]
    counts += [] if args.no_again else [counts[0]]
    rows: list[dict[str, Any]] = []
    first: Ratios = {}
    for number, count in enumerate(counts):
        folder = args.results / f"{number}-{count}-gpus"
        seconds, ratios, failed, phases = campaign(args, suite, count, folder)
        first = first or ratios
        entries = args.count - len({entry for entry, _ in failed})
        rows.append(
            row(count, entries, seconds, rows, first, ratios, again=number >= len(counts) - 1)
        )
        rows[-1] |= {"startup_s": middle(phases.startup_s), "timed_s": middle(phases.timed_s)}
        rows[-1]["failed"] = [f"{entry} {config}: {why}" for (entry, config), why in failed.items()]
        text = table(rows, suite, args.cpu)
        args.out.write_text(text, encoding="utf-8")
        args.out.with_suffix(".json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
        print(text, flush=True)
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--gpus", default="1,2,4")
    parser.add_argument("--count", type=int, default=32, help="submissions")
    parser.add_argument("--per-unit", type=int, default=4)
    parser.add_argument("--suite", help="default: quick; smoke with --cpu")
    parser.add_argument("--blocks", type=int, help="default: the suite's")
    parser.add_argument("--cpu", action="store_true", help="warm_up: CPU places instead of GPUs")
    parser.add_argument("--no-again", action="store_true", help="leave the A/A campaign out")
    parser.add_argument("--contexts", action="store_true", help="open contexts and nothing else")
    parser.add_argument("--results", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=Path("many-gpus.md"))
    args = parser.parse_args()
    args.results = args.results or Path(tempfile.mkdtemp(prefix="attnboard-many-"))
    return args


# --------------------------------------------------------------------------- submissions


def generate(out: Path, count: int, kind: str = "torch") -> list[Path]:
    """`count` folders below `out`."""
    out.mkdir(parents=True, exist_ok=True)
    folders = [out / f"g{number:05d}" for number in range(count)]
    for number, folder in enumerate(folders):
        if kind == "triton":
            copy_template(folder, number)
        else:
            folder.mkdir(exist_ok=True)
            groups = GROUPS[number % len(GROUPS)]
            source = TORCH.format(groups=groups, number=number)
            (folder / "submission.py").write_text(source, encoding="utf-8")
            told = MANIFEST.format(name=folder.name, description=f"{groups} groups of heads")
            (folder / "manifest.yaml").write_text(told, encoding="utf-8")
    return folders


def copy_template(folder: Path, number: int) -> None:
    """The template with a line that makes it another one."""
    skipped = shutil.ignore_patterns("steps", "*.md", "__pycache__")
    template = ROOT / "submissions" / "triton_template"
    shutil.copytree(template, folder, ignore=skipped, dirs_exist_ok=True)
    manifest = folder / "manifest.yaml"
    text = manifest.read_text(encoding="utf-8")
    manifest.write_text(text.replace("name: triton_template", f"name: {folder.name}"), "utf-8")
    with (folder / "submission.py").open("a", encoding="utf-8") as file:
        file.write(f"\n\nVARIANT = {number}\n")


# --------------------------------------------------------------------------- measured


def campaign(
    args: argparse.Namespace, suite: Suite, count: int, folder: Path
) -> tuple[float, Ratios, dict[tuple[str, str], str], Phases]:
    """(seconds, ratios of what passed, what did not, the view) of one campaign on `count` GPUs."""
    gpus = ["none"] * count if args.cpu else choose_gpus(count)
    with tempfile.TemporaryDirectory(prefix="attnboard-many-") as private:
        generated = Path(private) / "generated"
        generate(generated, args.count)
        request = asked(suite, generated, gpus[0], Path(private) / "cache")
        found: list[Result] = []

        def save(result: Result) -> None:
            record.append(folder, result)
            found.append(result)

        units = plan_units(request, args.per_unit)
        started = time.monotonic()
        with Phases() as view:
            Campaign(Local(gpus), units, save, view).run()
        seconds = time.monotonic() - started
    mine = [r for r in found if r.kind is Kind.SUBMISSION]
    ratios = {
        (r.entry, r.config): (interval_of(r.speedup), r.machine.uuid) for r in mine if r.speedup
    }
    failed = {
        (r.entry, r.config): f"{r.status.value} {r.reason}"
        for r in mine
        if r.status is not Status.PASSED
    }
    return seconds, ratios, failed, view


def asked(suite: Suite, generated: Path, gpu: str, cache: Path) -> Request:
    """All of `generated` beside the suite's headline baseline."""
    machine = machine_of(gpu)
    mine, against = [str(generated)], suite.against
    request = resolve(mine, [against], suite, machine, against, ROOT, 0)
    return replace(request, cache=cache)


# --------------------------------------------------------------------------- contexts


def contexts_s(count: int, gpus: Sequence[str]) -> float:
    """From the word go until all `count` have a context, spread over `gpus`; SystemExit if one fails."""
    fork = multiprocessing.get_context("fork")
    go, leave, told = fork.Event(), fork.Event(), fork.Queue()
    processes = [
        fork.Process(target=opened, args=(gpus[number % len(gpus)], go, leave, told))
        for number in range(count)
    ]
    for process in processes:
        process.start()
    time.sleep(0.3)  # all of them wait at `go`
    begun = time.monotonic()
    go.set()
    failed = [why for why in (told.get(timeout=PATIENCE_S) for _ in processes) if why]
    seconds = time.monotonic() - begun
    leave.set()
    for process in processes:
        process.join()
    if failed:
        raise SystemExit(f"no context: {failed[0]}\n  next: nvidia-smi")
    return seconds


def opened(gpu: str, go: Any, leave: Any, told: Any) -> None:
    """Open a context on `gpu` once `go` is set, tell how it went, keep it until `leave` is."""
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    go.wait()
    try:
        driver: Any = ctypes.CDLL("libcuda.so.1")
    except OSError as cause:
        told.put(str(cause))
        return
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), 0)
        or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        or driver.cuCtxSetCurrent(context)
        or driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(CONTEXT_BYTES))
    )
    told.put(f"the driver said {failed}" if failed else "")
    leave.wait()


# --------------------------------------------------------------------------- told


def row(
    count: int,
    entries: int,
    seconds: float,
    before: Sequence[Mapping[str, Any]],
    first: Ratios,
    ratios: Ratios,
    again: bool,
) -> dict[str, Any]:
    """One line of the table, against the first campaign."""
    per_minute = 60 * entries / seconds
    both = sorted(first.keys() & ratios.keys())
    quotients = [stats.quotient(ratios[key][0], first[key][0]) for key in both]
    changed = [key for key, q in zip(both, quotients, strict=True) if not q.holds(1.0)]
    same = [key for key in both if ratios[key][1] == first[key][1]]
    off = sorted(abs(q.value - 1) for q in quotients)
    return {
        "gpus": count,
        "again": bool(before) and again and count == before[0]["gpus"],
        "entries": entries,
        "seconds": round(seconds, 1),
        "entries_per_minute": per_minute,
        "needed": NEEDED.get(count),
        "compared": len(both) if before else 0,
        "compared_same_gpu": len(same) if before else 0,
        "changed": [" ".join(key) for key in changed] if before else [],
        "changed_same_gpu": len(set(same) & set(changed)) if before else 0,
        "median_difference_pct": 100 * off[len(off) // 2] if before and off else None,
        "largest_difference_pct": 100 * off[-1] if before and off else None,
    }


def middle(values: Sequence[float]) -> float:
    """Median; 0 of nothing."""
    return sorted(values)[len(values) // 2] if values else 0.0


def table(rows: Sequence[Mapping[str, Any]], suite: Suite, cpu: bool) -> str:
    """Markdown."""
    gpu = "a rehearsal on CPU places: no figure here means anything" if cpu else "one host"
    lines = [
        f"{suite.name}, {suite.blocks} blocks, {len(suite.cases)} configs; {gpu}\n",
        "| GPUs | entries | seconds | entries / min | speed-up | a unit: to its first block, from there "
        "| changed (95 %): same GPU | another GPU | difference, median | largest |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    fewest = min(rows, key=lambda r: (r["gpus"], r["again"]))  # the campaigns run in any order
    for r in rows:
        speed_up = r["entries_per_minute"] / fewest["entries_per_minute"]
        name = f"{r['gpus']} again" if r["again"] else str(r["gpus"])
        needed = f" (≥ {r['needed']})" if r["needed"] else ""
        cells = [name, str(r["entries"]), f"{r['seconds']:.0f}", f"{r['entries_per_minute']:.2f}"]
        cells += [f"{speed_up:.2f}×{needed}", f"{r['startup_s']:.1f} s, {r['timed_s']:.1f} s"]
        if r["compared"]:
            here, same = r["changed_same_gpu"], r["compared_same_gpu"]
            cells += [f"{here} of {same}", f"{len(r['changed']) - here} of {r['compared'] - same}"]
            cells += [f"{r['median_difference_pct']:.2f} %", f"{r['largest_difference_pct']:.2f} %"]
        else:
            cells += ["–"] * 4
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
