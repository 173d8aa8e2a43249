"""An exception of a submission → file and line, inside a Triton kernel too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.worker.load import describe

ROOT = Path(__file__).resolve().parents[2]
KERNELS = '''\
import triton
import triton.language as tl

@triton.jit
def helper(x):
    y = x + 1
    return tl.maxx(y)

@triton.jit
def nested(p, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(p + at, helper(tl.load(p + at)))

@triton.jit
def direct(p, N: tl.constexpr):
    """A kernel longer than what an error shows of it."""
    at = tl.arange(0, N)
    x = tl.load(p + at)
    tl.store(p + at, x.nothing)

def custom_attention_forward(kernel):
    globals()[kernel][(1,)](torch.ones(16), 16)
'''
CHILD = """\
import sys
from pathlib import Path
import torch
from harness.worker.load import describe
folder, name, how = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
sys.path.insert(0, str(folder))
import submission
submission.torch = torch
try:
    if how == "interpreted":
        submission.custom_attention_forward(name)
    else:
        import triton
        from triton.backends.compiler import GPUTarget
        source = triton.compiler.ASTSource(
            getattr(submission, name), {"p": "*fp32", "N": "constexpr"}, {(1,): 16}
        )
        triton.compile(source, target=GPUTarget("cuda", 90, 32))
except Exception as error:
    print(describe(error, folder))
"""


@pytest.mark.parametrize("how", ["interpreted", "compiled"])
@pytest.mark.parametrize(
    ("name", "line", "says"),
    [
        ("nested", 7, "module 'triton.language' has no attribute 'maxx'"),
        ("direct", 19, "'tensor' object has no attribute 'nothing'"),
    ],
)
def test_an_error_inside_a_kernel_names_its_line(
    tmp_path: Path, how: str, name: str, line: int, says: str
) -> None:
    pytest.importorskip("triton")
    (tmp_path / "submission.py").write_text(KERNELS)
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    env["TRITON_INTERPRET"] = "1" if how == "interpreted" else "0"
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), name, how],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    told = done.stdout
    assert told.startswith(f"submission.py:{line}: "), told + done.stderr
    assert says in told.splitlines()[0]  # what is wrong comes before the source


def raised(source: str, folder: Path) -> BaseException:
    path = folder / "submission.py"
    path.write_text(source)
    try:
        exec(compile(source, str(path), "exec"), {})
    except Exception as error:
        return error
    raise AssertionError("nothing raised")


def test_the_last_frame_of_the_submission(tmp_path: Path) -> None:
    error = raised("import json\ndef f():\n    json.loads('{')\nf()\n", tmp_path)
    assert describe(error, tmp_path).startswith("submission.py:3: JSONDecodeError: Expecting")


def test_what_an_author_raises_from_another_is_told_as_raised(tmp_path: Path) -> None:
    source = (
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('mine') from e\n"
    )
    assert describe(raised(source, tmp_path), tmp_path) == "submission.py:4: ValueError: mine"


def test_what_happens_elsewhere_has_no_place(tmp_path: Path) -> None:
    assert describe(KeyError(65), tmp_path) == "KeyError: 65"
