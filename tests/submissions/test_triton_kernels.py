"""The Triton submissions and baselines, run on the CPU by Triton's interpreter.

The kernels are loaded in child processes: TRITON_INTERPRET is read when triton is imported, and
@triton.autotune would time its candidates, for which the interpreter has no driver.
"""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytest.importorskip("torch")
pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[2]
RUNNER = Path(__file__).with_name("run_interpreted.py")
KERNELS = [
    "submissions/triton_template",
    "submissions/triton_two_pass",
    "submissions/triton_champion",
    "baselines/triton_flash_v1",
    "baselines/triton_flash_v2",
    "baselines/triton_flash_v3",
]

# (batch, nheads, seqlen_k, headdim), causal, sm_scale, dtype, inputs; kv heads and seqlen_q, where apart
CASES = {
    "one tile": [(1, 1, 64, 64), True, None, "float16", "normal"],
    "two heads, not causal": [(1, 2, 128, 64), False, None, "float16", "normal"],
    "length off the tile": [(1, 1, 201, 64), True, None, "float16", "normal"],
    "length off the tile, not causal": [(2, 1, 77, 32), False, None, "float16", "normal"],
    "one token": [(1, 1, 1, 64), True, None, "float16", "normal"],
    "headdim 128, large logits": [(1, 1, 160, 128), True, None, "float16", "large"],
    "headdim 256": [(1, 1, 130, 256), True, None, "float16", "normal"],
    "headdim 16": [(1, 1, 70, 16), True, None, "float16", "normal"],
    "odd scale": [(1, 1, 150, 64), True, 0.3717, "float16", "normal"],
    "zero scale": [(1, 1, 50, 64), True, 0.0, "float16", "normal"],
    "negative scale": [(1, 1, 100, 64), True, -0.2, "float16", "normal"],
    "rising keys": [(1, 1, 300, 64), True, None, "float16", "rising"],
    "views that are not contiguous": [(2, 3, 70, 64), True, None, "float16", "strided"],
    "one needle": [(1, 1, 300, 64), False, None, "float16", "needle"],
    "two kv heads of four": [(1, 4, 100, 64), True, None, "float16", "normal", 2, 100],
    "more keys than queries": [(2, 2, 201, 64), True, None, "float16", "normal", 1, 77],
    "keys off the tile": [(1, 3, 130, 64), False, None, "float16", "normal", 1, 129],
    "one query of many keys": [(1, 2, 193, 128), True, None, "float16", "normal", 2, 1],
}  # no bfloat16: the interpreter's tl.dot multiplies its bit patterns as integers


#: A newcomer's first two; the others take half a minute of a core.
FIRST = KERNELS[:2]
GROUPS = [FIRST, KERNELS[2:]]


@functools.cache
def errors_of(group: int) -> dict[str, dict[str, dict[str, float]]]:
    """Kernel → case that it claims → errors; one child process for a group, which imports torch once."""
    asked = {}
    for kernel in GROUPS[group]:
        manifest = yaml.safe_load((ROOT / kernel / "manifest.yaml").read_text())
        known, apart = manifest["claims"]["headdims"], manifest["claims"].get("gqa", False)
        asked[kernel] = {
            name: case
            for name, case in CASES.items()
            if case[0][3] in known and (len(case) == 5 or apart)
        }
    child = subprocess.run(
        [sys.executable, str(RUNNER)],
        input=json.dumps({str(ROOT / k / "submission.py"): v for k, v in asked.items()}),
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        timeout=600,
    )
    assert child.returncode == 0, child.stderr
    lines = child.stdout.splitlines()[-len(asked) :]
    return dict(zip(asked, map(json.loads, lines), strict=True))


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(k, marks=() if k in FIRST else pytest.mark.slow, id=k.split("/")[1])
        for k in KERNELS
    ],
)
@pytest.mark.parametrize("case", CASES)
def test_matches_the_float64_reference(kernel: str, case: str) -> None:
    errors = errors_of(next(i for i, group in enumerate(GROUPS) if kernel in group))[kernel]
    if case not in errors:
        pytest.skip("not among what the manifest claims")
    error = errors[case]
    assert error["max_diff"] < 1e-2
    assert error["relative_l2"] < 1e-3
    assert error["worst_row"] < 2e-3
    if kernel == "submissions/triton_champion":
        assert error["lse"] < 1e-3
