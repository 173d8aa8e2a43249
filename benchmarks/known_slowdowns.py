"""Are 1, 2 and 5 % seen, and is nothing seen where there is nothing? On a GPU, with default settings.

    python benchmarks/known_slowdowns.py [--keep FOLDER]

Enters cuDNN's attention four times beside the baseline that is the same kernel: as it is (A/A), and
followed by a kernel that waits for 1, 2 and 5 % of the baseline's time. Prints what the harness
measured. Expected: the interval of A/A holds 1 or misses it by less than 0.3 %, the others lie below.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
SLOWER_PCT = {"same": 0.0, "slow1": 1.0, "slow2": 2.0, "slow5": 5.0}
#: Latency on one H200 in ms, by headdim, and the SM clock it ran at.
BASELINE_MS = {
    "sdpa_cudnn": {64: 0.634, 128: 0.912, 256: 1.711},
    "sdpa_flash": {64: 0.984, 128: 1.734, 256: 3.724},
}
SM_MHZ = 1980
SUBMISSION = """
import importlib.util
import torch

spec = importlib.util.spec_from_file_location("base", {path!r})
base = importlib.util.module_from_spec(spec)
spec.loader.exec_module(base)
CYCLES = {cycles!r}


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    o = base.custom_attention_forward(q, k, v, causal, sm_scale)
    if CYCLES[q.shape[-1]]:
        torch.cuda._sleep(CYCLES[q.shape[-1]])
    return o
"""


def main() -> None:
    """Write the four entries, run them, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="keep the records here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for entry, slower in SLOWER_PCT.items():
            write_entry(folder / entry, slower)
        command = [sys.executable, str(ROOT / "run.py"), "--json", "--baselines", "sdpa_cudnn"]
        command += ["--submission", ",".join(str(folder / entry) for entry in SLOWER_PCT)]
        results, suite = args.keep or folder / "results", folder / "fa3.yaml"
        told_suite = yaml.safe_load((ROOT / "configs" / suite.name).read_text(encoding="utf-8"))
        # no hidden shapes: the waits are shares of the official ones' times
        suite.write_text(json.dumps(told_suite | {"hidden": 0}), encoding="utf-8")
        command += ["--suite", str(suite)]
        command += ["--results", str(results), "--leaderboard", f"{name}/leaderboard.md"]
        told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    for line in json.loads(told.stdout)["results"]:
        if line["entry"] in SLOWER_PCT:
            print(row(line))


def write_entry(folder: Path, slower_pct: float, base: str = "sdpa_cudnn") -> None:
    """One submission: `base`, then a wait of `slower_pct` percent of its time."""
    folder.mkdir()
    times_ms = BASELINE_MS[base].items()
    cycles = {d: int(ms * 1e3 * SM_MHZ * slower_pct / 100) for d, ms in times_ms}
    shutil.copy(ROOT / "baselines" / base / "submission.py", folder / "base.py")
    text = SUBMISSION.replace("{path!r}", "__file__.replace('submission.py', 'base.py')")
    (folder / "submission.py").write_text(text.replace("{cycles!r}", repr(cycles)))
    (folder / "manifest.yaml").write_text(
        f"name: {folder.name}\nlanguage: pytorch\n"
        "claims: {headdims: [64, 128, 256], causal: both, seqlen_min: 2, dtypes: [fp16]}\n"
    )


def row(line: dict) -> str:
    """`slow1 hdim64_seq4k: 1.02 % slower [0.93, 1.11], asked for 1 %: seen`."""
    name = f"{line['entry']:6} {line['config']:15}"
    told = line["speedup"]
    if told is None:
        return f"{name} {line['status']} {line['reason']}"
    slower = [100 * (1 / told[key] - 1) for key in ("value", "high", "low")]
    verdict = "seen as slower" if told["high"] < 1 else "not told apart from the baseline"
    verdict = "seen as faster" if told["low"] > 1 else verdict
    asked = SLOWER_PCT[line["entry"]]
    return f"{name} {slower[0]:+.2f} % [{slower[1]:+.2f}, {slower[2]:+.2f}], asked {asked:g} %: {verdict}"


if __name__ == "__main__":
    main()
