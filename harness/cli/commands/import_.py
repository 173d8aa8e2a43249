"""`import DEFINITION.json WORKLOADS.jsonl`: a suite from attention traced by FlashInfer-Bench.

A definition of its op_type gqa_ragged (docs/flashinfer-trace/ of flashinfer-ai/flashinfer-bench)
says heads, headdim and dtype; each line of its workloads says how many tokens one call had, and in
qo_indptr and kv_indptr, two tensors of a .safetensors file, where each sequence begins. Values of
q, k and v are not taken: a judge draws its own. What no case here can say, several sequences of
which some have more keys than queries, or a causal one with fewer, is left out and counted.
"""

import argparse
import json
import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import ValidationError

from harness.board.render.text import sanitize
from harness.catalog.source_files import read_file
from harness.catalog.suites import known_suites
from harness.cli.arguments import whole
from harness.errors import Exit, UnavailableError, UsageError, typed
from harness.problems import get_problem
from harness.process.project import root
from harness.process.text import shown
from harness.schema import Case, Suite, is_name
from harness.schema.suite import MOST_CASES, MOST_SEQUENCES

MOST_BYTES = 16 << 20  # of a definition, or of workloads
MOST_INDPTR, MOST_HEAD = 1 << 20, 16 << 10  # bytes of a file of indptr; of them its head
SIZES = {"heads": "num_qo_heads", "kv_heads": "num_kv_heads", "headdim": "head_dim"}
DTYPES = {"float16": "fp16", "bfloat16": "bf16"}
BASELINES = ("sdpa_cudnn", "sdpa_flash", "flash_attn_2", "flash_attn_3", "flash_attn_4")
BURST_FLOPS = 3e12  # some 6 ms on an H200
MOST_BURST = 24
MOST_WORKLOADS = 1000  # of a definition: 16 MiB may name 72,000, which take minutes and 10 GiB
MOST_ABOVE = 4  # folders at and above the workloads' file: a trace set is no deeper
#: What a value of another kind, size, depth or name than a definition has can raise.
ODD = (ArithmeticError, LookupError, OSError, RecursionError, TypeError, ValueError)
FLOPS = get_problem("attention_forward").flops


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What may stand behind the command."""
    parser.add_argument("definition", type=Path, metavar="DEFINITION.json")
    parser.add_argument(
        "workloads", type=Path, metavar="WORKLOADS.jsonl", help="the first 1,000 are read"
    )
    parser.add_argument("--name", help="of the suite (default: the definition's)")
    what = "cases, from least to most work"
    parser.add_argument("--most", type=whole(1, MOST_CASES), default=8, metavar="N", help=what)


def run(args: argparse.Namespace) -> int:
    """0: written; 2: a file is wrong, or there already; 3: no workload can be a case here."""
    name, shared = _definition(args.definition)
    suite = args.name or name
    if not is_name(suite) or "/" in suite or Path(suite).suffix:  # of one file, in one folder
        raise UsageError(f"{shown(suite, 80)!r} is no name of a suite", "take another: --name NAME")
    path = root() / "configs" / f"{suite}.yaml"
    if path.exists() or suite in known_suites(path.parent):  # also of what comes along
        raise UsageError(f"{suite}: a suite is called so already", "take another name: --name NAME")
    traced = islice(_lines(args.workloads, name), MOST_WORKLOADS)
    found = [_case(workload, shared, args.workloads, line) for line, workload in traced]
    name = sanitize(name, 80)  # one line of ours
    if not (cases := list({(c.shape, c.kv_shape, c.seqlens): c for c in found if c}.values())):
        said = f"{args.workloads}: none of {len(found)} workloads of {name} can be a case here"
        raise UnavailableError(said, "see docs/arguments.md for what a case can say")
    chosen = spread(cases, args.most)
    text = _text(suite, f"{name} of FlashInfer-Bench, {len(chosen)} traced shapes", chosen, args)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    read = f"{'the first ' if len(found) == MOST_WORKLOADS else ''}{len(found)} workloads"
    told = f"{len(chosen)} of {len(cases)} shapes from {read}"
    left = f"{found.count(None)}: what no case can say (docs/arguments.md)"
    print(f"{path}: {told}; left out {left}")
    print(f"next: {typed(f'python run.py --submission triton_champion --suite {suite}')}")
    return Exit.OK


def spread(cases: Sequence[Case], most: int) -> list[Case]:
    """At most `most` of `cases`, evenly from the least to the most work."""
    ordered = sorted(cases, key=FLOPS)
    places = np.linspace(len(ordered) - 1, 0, min(most, len(ordered)))[::-1]
    return [ordered[round(float(place))] for place in places]


def _definition(path: Path) -> tuple[str, dict[str, Any]]:
    """Its name, and what all its cases share."""
    hint = "take a definition gqa_ragged_prefill_… of a FlashInfer trace set"
    try:
        trace = json.loads(read_file(path, MOST_BYTES, UsageError))
        if trace["op_type"] != "gqa_ragged":
            raise UsageError(f"{path}: op_type {trace['op_type']!r:.80} is not taken here", hint)
        dtype, axes = trace["inputs"]["q"]["dtype"], trace["axes"]
        if dtype not in DTYPES:
            raise UsageError(f"{path}: inputs.q.dtype {dtype!r:.80} is not taken here", hint)
        shared: dict[str, Any] = {each: int(axes[axis]["value"]) for each, axis in SIZES.items()}
        name = str(trace["name"])
        parts = re.split(r"prefill_causal(?=_h\d|$)", name)  # as a causal definition is called
        if any("causal" in part.lower() for part in parts):
            raise UsageError(f"{path}: {name!r:.80}: causal or not? its name does not tell", hint)
    except ODD as cause:
        raise UsageError(f"{path}: no definition: {type(cause).__name__} {cause}", hint) from None
    return name, shared | {"dtype": DTYPES[dtype], "causal": len(parts) > 1}


def _lines(path: Path, name: str) -> Iterator[tuple[int, Any]]:
    """Line → workload, of those of the definition `name`."""
    text = read_file(path, MOST_BYTES, UsageError).decode("utf-8", errors="replace")
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            traced = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError) as cause:
            raise UsageError(f"{path}:{number}: not JSON: {cause}", "mend that line") from None
        if isinstance(traced, dict) and traced.get("definition") == name:
            yield number, traced.get("workload")


def _case(workload: Any, shared: dict[str, Any], path: Path, line: int) -> Case | None:
    """The case of a workload; None for what no case can say."""
    try:
        axes = workload["axes"]
        if axes["len_indptr"] == 2:
            pairs = [(int(axes["total_q"]), int(axes["total_kv"]))]
        elif axes["len_indptr"] > MOST_SEQUENCES + 1:
            return None
        else:
            ends = [_indptr(workload, each, path) for each in ("qo_indptr", "kv_indptr")]
            lengths = [[after - before for before, after in pairwise(each)] for each in ends]
            pairs = [(q, k) for q, k in zip(*lengths, strict=True) if q]
        if not any(q for q, _ in pairs) or (len(pairs) > 1 and any(q != k for q, k in pairs)):
            return None
        name = f"w{re.sub(r'[^A-Za-z0-9]', '', str(workload['uuid']))[:8]}_{line}"
        return _shaped(pairs, {"name": name, **shared})
    except ValidationError:
        return None
    except ODD as cause:
        said = shown(f"{path}:{line}: no workload: {type(cause).__name__} {cause}", 400)
        raise UsageError(said, "mend that line, or take it out") from None


def _shaped(pairs: Sequence[tuple[int, int]], shared: dict[str, Any]) -> Case:
    """(queries, keys) of each sequence → one sequence, a batch of equal ones, or packed ones."""
    queries = [q for q, _ in pairs]
    equal = len(set(queries)) == 1
    case = Case(
        batch=len(pairs) if equal else 1,
        seqlen=queries[0] if equal else sum(queries),
        seqlen_k=pairs[0][1] if len(pairs) == 1 else None,
        seqlens=() if equal else tuple(queries),
        **shared,
    )
    burst = max(2, min(MOST_BURST, round(BURST_FLOPS / FLOPS(case))))
    return case.model_copy(update={"burst": burst})


def _indptr(workload: Any, name: str, path: Path) -> list[int]:
    """One tensor of integers of a .safetensors file: the length of a JSON head, the head, bytes.

    Its path counts from the trace set's folder, which lies at or above the workloads' file.
    """
    source = workload["inputs"][name]
    if Path(source["path"]).is_absolute() or ".." in Path(source["path"]).parts:
        raise ValueError(f"inputs.{name}: {source['path']!r:.200} leads out of the trace set")
    above = path.resolve().parents  # its folder, and no more than a trace set has above it
    homes = above[: min(MOST_ABOVE, len(above) - 1)]
    if (home := next((h for h in homes if os.path.isfile(h / source["path"])), None)) is None:
        raise ValueError(f"inputs.{name}: no file {source['path']!r:.200} at or above {path}")
    body = read_file(home / source["path"], MOST_INDPTR, UsageError, within=home)
    end = 8 + int.from_bytes(body[:8], "little")
    if end > MOST_HEAD:
        raise ValueError(f"inputs.{name}: a head of more than {MOST_HEAD} bytes")
    head = json.loads(body[8:end])[source["tensor_key"]]
    first, last = head["data_offsets"]
    kind = {"I32": "<i4", "I64": "<i8"}[head["dtype"]]
    values: list[int] = np.frombuffer(body[end + first : end + last], kind).tolist()
    if len(values) != workload["axes"]["len_indptr"] or sorted(values) != values or values[0]:
        raise ValueError(f"inputs.{name}: not len_indptr places that rise from 0")
    return values


def _text(name: str, what: str, cases: Sequence[Case], args: argparse.Namespace) -> str:
    """The suite's file; raises UsageError where it would be none."""
    try:
        suite = Suite(name=name, description=what, cases=tuple(cases))
    except ValidationError as cause:
        said = f"{args.workloads}: {cause.errors()[0]['msg']}"
        raise UsageError(said, "a smaller --most") from None
    fields = {"name", "description", "problem", "device", "against"}
    head = suite.model_dump(mode="json", include=fields)
    listed = [json.dumps(case.model_dump(mode="json")) for case in cases]  # which is YAML too
    return (
        f"# Imported from {shown(args.definition.name)} and {shown(args.workloads.name)}.\n"
        + yaml.safe_dump(head, sort_keys=False)
        + f"baselines: [{', '.join(BASELINES)}]\ncases:\n"
        + "".join(f"  - {each}\n" for each in listed)
    )
