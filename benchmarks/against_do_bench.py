"""Does the harness say what triton.testing.do_bench says? sdpa_cudnn by both, on the official shapes.

Runs `run.py` on one baseline, then do_bench on the same shapes, on the same machine, back to back.

    python benchmarks/against_do_bench.py --out do_bench.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DO_BENCH = """
import json, sys
import torch, triton
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

found = {}
for name, b, h, s, d in json.loads(sys.argv[1]):
    q, k, v = (torch.randn(b, h, s, d, device="cuda", dtype=torch.float16) for _ in range(3))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        call = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
        found[name] = triton.testing.do_bench(call, return_mode="median")
print(json.dumps(found))
"""


def main() -> int:
    """Measure both ways and write the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows = by_harness()
    shapes = [
        [row["config"], *(row["case"][k] for k in ("batch", "heads", "seqlen", "headdim"))]
        for row in rows
    ]
    done = subprocess.run(
        [sys.executable, "-c", DO_BENCH, json.dumps(shapes)],
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = json.loads(done.stdout)
    document = {
        row["config"]: {
            "harness_ms": row["latency_ms"],
            "do_bench_ms": theirs[row["config"]],
            "difference_pct": round(100 * (row["latency_ms"] / theirs[row["config"]] - 1), 2),
        }
        for row in rows
    }
    args.out.write_text(
        json.dumps({"gpu": rows[0]["gpu"], "configs": document}, indent=1) + "\n", encoding="utf-8"
    )
    print(args.out.read_text(encoding="utf-8"))
    return 0


def by_harness() -> list[dict[str, Any]]:
    """sdpa_cudnn's lines of a run of its own."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                *(sys.executable, "run.py", "--submission", "baselines/sdpa_cudnn", "--baselines", "none"),
                *("--suite", "fa3", "--json", "--results", folder, "--leaderboard", f"{folder}/board.md"),
            ],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
    rows: list[dict[str, Any]] = json.loads(done.stdout)["results"]
    return rows


if __name__ == "__main__":
    sys.exit(main())
