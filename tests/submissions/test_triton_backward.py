"""triton_backward: right under Triton's interpreter, and within Hopper's registers and shared memory."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SHARED_BYTES_OF_A_PROGRAM = 227 * 1024  # sm_90

# (batch, heads, seqlen, headdim), causal, sm_scale, inputs
INTERPRET = """
import importlib.util, json, sys
import torch
from harness.problems import attention_backward_tensors as tensors
from harness.schema import Case
spec = importlib.util.spec_from_file_location("submission", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["submission"] = module
spec.loader.exec_module(module)
for shape, causal, scale, kind in json.load(sys.stdin):
    case = dict(zip(("batch", "heads", "seqlen", "headdim"), shape), causal=causal, name="x")
    kwargs = {"causal": causal, "sm_scale": scale}
    generator, device = torch.Generator().manual_seed(0), torch.device("cpu")
    inputs = tensors.make_inputs(Case(**case), kind, generator, device, kwargs)
    found = module.custom_attention_backward(*inputs, **kwargs)
    pairs = zip(found, tensors.exact(inputs, kwargs))
    print(json.dumps([((a.double() - b).norm() / b.norm()).item() for a, b in pairs]))
"""
CASES = [
    [(1, 2, 200, 64), True, 0.1, "large_logits"],
    [(2, 1, 77, 32), False, None, "normal"],
    [(1, 1, 160, 128), True, None, "offset_v"],
    [(1, 1, 130, 256), True, 0.05, "spiky_do"],  # split
]


def child(command: list[str], **options: object) -> list[object]:
    done = subprocess.run(
        [sys.executable, *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        **options,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_gradients_under_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    entry = ROOT / "submissions" / "triton_backward" / "submission.py"
    errors = child(["-c", INTERPRET, str(entry)], input=json.dumps(CASES), env=environment)
    assert len(errors) == len(CASES)
    for case, mine in zip(CASES, errors, strict=True):
        assert max(mine) < 1.2e-3, (case, mine)


def test_what_is_frozen_was_a_candidate() -> None:
    entry = ROOT / "submissions" / "triton_backward" / "submission.py"
    spec = importlib.util.spec_from_file_location("triton_backward", entry)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert {headdim for _, headdim in module.FROZEN} == {64, 128, 256}
    for (_, headdim), (keys, queries) in module.FROZEN.items():
        assert keys in module.KEYS_TILES[headdim]
        assert queries in module.QUERIES_TILES[headdim]


def test_the_tightest_tiles_do_not_spill(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    rows = child([str(HERE / "compile_backward_tiles.py"), "--first", "256"], env=environment)
    assert [row["kernel"] for row in rows] == ["keys", "keys", "queries"]  # dv and dk apart
    for row in rows:
        assert row["stack"] == 0, row
        assert row["shared"] <= SHARED_BYTES_OF_A_PROGRAM, row
