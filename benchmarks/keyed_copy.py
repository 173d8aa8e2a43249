r"""A copy of a submission that is fast on a suite's own shapes only: does its row say so?

Elsewhere a quarter of the heads is computed twice. Times ten runs' worth of hidden shapes, because
a run of the suite draws one a headdim:

    python benchmarks/keyed_copy.py cuda_hopper fa3_grid FOLDER
    sed 's/^name: .*/name: fa3_hidden/; s/^hidden: .*/hidden: 10/' configs/fa3_grid.yaml > FOLDER/fa3_hidden.yaml
    python run.py --submission cuda_hopper,FOLDER/keyed --baselines sdpa_cudnn,flash_attn_3 \
        --suite FOLDER/fa3_hidden.yaml --only 'hdim256_*' --blocks 5 --results FOLDER/results
    python benchmarks/hidden_shapes.py FOLDER/results results
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from harness.catalog.suites import load_suite  # noqa: E402

KEYED = """

_right, _PUBLIC = custom_attention_forward, {public}


def custom_attention_forward(q, k, v, causal=True, sm_scale=None, **more):
    if (*q.shape, bool(causal)) not in _PUBLIC:
        few = max(1, q.shape[1] // 4)
        _right(q[:, :few], k[:, :few], v[:, :few], causal, sm_scale)
    return _right(q, k, v, causal, sm_scale, **more)
"""


def keyed_copy(submission: Path, suite: str, folder: Path) -> Path:
    """`submission` in `folder`/keyed, keyed on the shapes of `suite`; it must hold submission.py."""
    cases = load_suite(suite, ROOT / "configs").cases
    public = {(*case.shape, case.causal) for case in cases}
    copy = folder / "keyed"
    shutil.copytree(submission, copy, ignore=shutil.ignore_patterns("steps", "results", "NOTES.md"))
    source = copy / "submission.py"
    source.write_text(source.read_text() + KEYED.format(public=sorted(public)))
    manifest = copy / "manifest.yaml"
    told = manifest.read_text().replace(f"name: {submission.name}\n", "name: keyed\n")
    manifest.write_text(told)
    return copy


def main() -> None:
    """Make the copy and say where it lies."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("submission", help="of submissions/, with its function in submission.py")
    parser.add_argument("suite")
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    print(keyed_copy(ROOT / "submissions" / asked.submission, asked.suite, asked.folder))


if __name__ == "__main__":
    main()
