"""Does the harness say what triton.testing.do_bench says? sdpa_cudnn by both, on the official shapes.

Runs `run.py` on a submission beside it with each of --heats (milliseconds of the judge's own attention right before
every timed burst, `heat_ms` of a suite), then do_bench on the same shapes, back to back on one machine.
A GPU that has rested runs at its top clock for some 50 ms, then its power limit steps in. do_bench's default
100 ms lie across that step, so its median is of either regime or between; asked for 15 ms or for a second
it measures one of them (docs/how-timing-works.md).

    python benchmarks/against_do_bench.py --heats 0,40,80 --out do_bench.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
BASELINE, BESIDE = "sdpa_cudnn", "triton_template"  # a run is of a submission
#: What do_bench is asked for, and what that measures; each after a second of rest.
MODES = {
    "first 15 ms": {"warmup": 1, "rep": 15},  # as long as a burst: the chip is at its top clock
    "default": {"warmup": 25, "rep": 100},  # across the step at some 50 ms: a median of both
    "sustained": {"warmup": 300, "rep": 1000},
}
DO_BENCH = """
import json, sys, time
import torch, triton
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

found = {}
for name, b, h, s, d in json.loads(sys.argv[1]):
    q, k, v = (torch.randn(b, h, s, d, device="cuda", dtype=torch.float16) for _ in range(3))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        call = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
        for _ in range(20):
            call()
        for mode, asked in json.loads(sys.argv[2]).items():
            torch.cuda.synchronize()
            time.sleep(1)
            found[f"{mode}/{name}"] = triton.testing.do_bench(call, return_mode="median", **asked)
print(json.dumps(found))
"""


def main() -> int:
    """Measure both ways, write the ratios, print a line each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--heats", default="", help="comma list of milliseconds; default: the suite's"
    )
    parser.add_argument("--suite", default="fa3")
    args = parser.parse_args()
    suite = yaml.safe_load((ROOT / "configs" / f"{args.suite}.yaml").read_text(encoding="utf-8"))
    suite["hidden"] = 0  # do_bench is not asked for shapes that nobody knows
    heats = [float(text) for text in args.heats.split(",") if text] or [suite.get("heat_ms", 0)]
    runs = {heat_ms: by_harness(suite | {"heat_ms": heat_ms}) for heat_ms in heats}
    theirs = by_do_bench(suite)
    document: dict[str, Any] = {"gpu": runs[heats[0]][0]["gpu"], "do_bench_ms": theirs}
    for heat_ms, rows in runs.items():
        for row in rows:
            ours, name = row["latency_ms"], row["config"]
            off = {mode: 100 * (ours / theirs[f"{mode}/{name}"] - 1) for mode in MODES}
            line = {"latency_ms": ours, "difference_pct": {m: round(x, 2) for m, x in off.items()}}
            document.setdefault(f"heat_ms {heat_ms:g}", {})[name] = line
            told = ", ".join(f"{mode} {difference:+.2f} %" for mode, difference in off.items())
            print(f"heat {heat_ms:3g} ms  {name:15} {ours:.4f} ms  do_bench {told}")
    args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


def by_do_bench(suite: dict[str, Any]) -> dict[str, float]:
    """Median milliseconds by mode and configuration, in a fresh process."""
    shapes = [
        [case[key] for key in ("name", "batch", "heads", "seqlen", "headdim")]
        for case in suite["cases"]
    ]
    done = subprocess.run(
        [sys.executable, "-c", DO_BENCH, json.dumps(shapes), json.dumps(MODES)],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def by_harness(suite: dict[str, Any]) -> list[dict[str, Any]]:
    """The baseline's lines of a run."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, f"{suite['name']}.yaml")
        config.write_text(yaml.safe_dump(suite), encoding="utf-8")
        words = [sys.executable, "run.py", "--submission", BESIDE, "--baselines", BASELINE]
        words += ["--suite", str(config), "--json"]
        words += ["--results", f"{folder}/results", "--leaderboard", f"{folder}/board.md"]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    rows: list[dict[str, Any]] = json.loads(done.stdout)["results"]
    return [row for row in rows if row["entry"] == BASELINE]


if __name__ == "__main__":
    sys.exit(main())
