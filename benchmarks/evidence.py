"""Every figure that this repository quotes from a GPU, measured again by one command.

    python benchmarks/evidence.py --out FOLDER                      all parts, the short ones first
    python benchmarks/evidence.py --out FOLDER --parts board,clocks --seconds 540
    python benchmarks/evidence.py --list

Each part is a command of this repository, with a time after which it is stopped. Its output goes to
FOLDER/<part>.txt as it comes, its records to FOLDER/results, and the table at the end says what each
part ended with; a part that does not fit into what is left of --seconds is not begun. Exit code 1 if a
part failed or was not run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
ENTRANTS = "cuda_hopper,gluon_champion,triton_champion,triton_two_pass,triton_template"
LIBRARIES = "sdpa_cudnn,sdpa,sdpa_flash,flash_attn_2,flash_attn_3,flash_attn_4,flex_attention,xformers,flashinfer"
RUNGS = "triton_flash_v1,triton_flash_v2,triton_flash_v3"
SLOW = "sdpa_cudnn,sdpa_efficient,sdpa_math"  # apart: sdpa_math alone takes 26 GB and a third of the time
BACKWARD = "triton_backward,cuda_wmma_lab_backward,cuda_hopper_backward"


@dataclass(frozen=True)
class Part:
    """One command; {out} in its words is the folder of the evidence."""

    name: str
    shows: str
    words: tuple[str, ...]
    seconds: float  # stopped after this long


def run_py(*words: str) -> tuple[str, ...]:
    """A run of the harness whose records and board go to the evidence."""
    kept = ("--results", "{out}/results", "--leaderboard", "{out}/leaderboard.md")
    return (PYTHON, "run.py", *words, *kept)


def benchmark(name: str, *words: str) -> tuple[str, ...]:
    """A script beside this one."""
    return (PYTHON, f"benchmarks/{name}.py", *words)


PARTS = (
    Part("faults_gpu", "each fault of a GPU process has its status, the others lose nothing",
         (PYTHON, "-m", "pytest", "-q", "tests/gpu"), 240),
    Part("one_against_one", "wall time of one submission against one baseline",
         run_py("--submission", "cuda_hopper", "--baselines", "sdpa_cudnn"), 120),
    Part("do_bench", "what triton.testing.do_bench says of the same kernel",
         benchmark("against_do_bench", "--heats", "0", "--out", "{out}/do_bench.json"), 90),
    Part("board", "the submissions and the libraries on fa3, in one run",
         run_py("--submission", f"{ENTRANTS},cuda_fa2_tile64", "--baselines", f"{LIBRARIES},{RUNGS}"), 330),
    Part("slow_rows", "those that take long or much memory",
         run_py("--submission", "cuda_cuflash,cuda_wmma_lab", "--baselines", SLOW), 120),
    Part("verify", "a committed record measured again", (PYTHON, "run.py", "verify", "triton_template"), 75),
    Part("slowdowns", "1, 2 and 5 % slower are told from the same kernel twice",
         benchmark("known_slowdowns", "--keep", "{out}/slowdowns"), 120),
    Part("clocks", "A/A, slack, how a worker is treated that is honest or 3 % short",
         benchmark("clocks", "--runs", "40", "--out", "{out}/clocks.json"), 480),
    Part("honest", "honest kernels judged again and again: false verdicts",
         benchmark("honest_runs", "--runs", "20", "--out", "{out}/honest"), 300),
    Part("selftest", "the corpus: cheaters stopped, honest kernels passed",
         (PYTHON, "run.py", "selftest", "--batch", "22"), 480),
    Part("ablation", "each defence switched off: who comes through then",
         (PYTHON, "run.py", "selftest", "--ablate", "--batch", "22"), 560),
    Part("ladder", "every rung of the Hopper forward, verified and timed beside the libraries",
         benchmark("hopper_ladder", "--out", "{out}/ladder"), 120),
    Part("sanitize", "compute-sanitizer over the Hopper forward",
         benchmark("hopper_ladder", "--sanitize", "--out", "{out}/sanitize"), 70),
    Part("bursts", "1,000 bursts a headdim of the Hopper forward, every output compared",
         benchmark("hopper_ladder", "--bursts", "1000"), 70),
    Part("edit", "from an edited .cu to its verdict",
         benchmark("edit_to_verdict"), 60),
    Part("edit_watched", "the same under run.py --watch",
         benchmark("edit_to_verdict", "--watch"), 240),
    Part("backward_kernel", "every rung of the Hopper backward, verified and timed",
         benchmark("backward_kernel"), 150),
    Part("backward", "gradients: every submission and every baseline on fa3_bwd, in one run",
         run_py("--submission", BACKWARD, "--baselines", "all", "--suite", "fa3_bwd"), 180),
    Part("race", "64 candidates: the race against the full run",
         benchmark("racing", "--gpu", "--candidates", "64"), 580),
    Part("sandbox", "what the usual sandbox level costs",
         benchmark("sandbox_cost", "--blocks", "20"), 90),
    Part("profile", "counters and the likely limiter of the fastest CUDA kernel",
         (PYTHON, "run.py", "profile", "cuda_hopper"), 180),
)  # fmt: skip


def main() -> int:
    """Run the parts that were asked for and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("evidence"))
    parser.add_argument("--parts", default=",".join(part.name for part in PARTS))
    parser.add_argument("--seconds", type=float, default=1e9, help="for all parts together")
    parser.add_argument("--list", action="store_true", help="name the parts and end")
    args = parser.parse_args()
    if args.list:
        for part in PARTS:
            print(f"{part.name:16} <= {part.seconds:3.0f} s  {part.shows}")
        return 0
    parts = chosen(args.parts.split(","))
    args.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + args.seconds
    rows = [run_part(part, args.out.resolve(), deadline) for part in parts]
    print("| part | ended | seconds | last line |\n|---|---|---|---|")
    for part, (ended, seconds, last) in zip(parts, rows, strict=True):
        print(f"| {part.name} | {ended} | {seconds:.0f} | {last[:120]} |")
    return 0 if all(ended == "0" for ended, _, _ in rows) else 1


def chosen(names: Sequence[str]) -> list[Part]:
    """The parts in the order they are named; ends with a message on a name that is none."""
    known = {part.name: part for part in PARTS}
    for name in names:
        if name not in known:
            sys.exit(f"--parts {name}: unknown; write some of {', '.join(known)}")
    return [known[name] for name in names]


def run_part(part: Part, out: Path, deadline: float) -> tuple[str, float, str]:
    """(how it ended, seconds, last line of its output)."""
    left = deadline - time.monotonic()
    if left < 10:
        return "not begun", 0.0, "no time was left"
    words = [word.replace("{out}", str(out)) for word in part.words]
    log, started = out / f"{part.name}.txt", time.monotonic()
    print(f"{part.name}: {' '.join(words[1:])}", flush=True)
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            words, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            ended = str(process.wait(min(part.seconds, left)))
        except subprocess.TimeoutExpired:
            ended = stop(process)
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return ended, time.monotonic() - started, lines[-1] if lines else ""


def stop(process: subprocess.Popen[bytes]) -> str:
    """Ctrl-C, so that what was measured is kept; then the hard way."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return "stopped"


if __name__ == "__main__":
    sys.exit(main())
