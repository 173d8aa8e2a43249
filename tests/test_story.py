"""The whole story on a CPU: a submission in, a judged record and a board out."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

SUITE = """\
name: tiny
device: cpu
against: sdpa
baselines: [sdpa]
blocks: {blocks}
warmup_blocks: 1
cases:
  - {{name: one, batch: 1, heads: 1, seqlen: 48, headdim: 16, causal: true, burst: 2}}
  - {{name: two, batch: 1, heads: 2, seqlen: 32, headdim: 32, causal: false, burst: 2}}
limits: {{burst_s: 5, first_call_s: 4, again_s: 1, memory_gib: 4}}
"""
GOOD = """\
import torch.nn.functional as F

def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
"""
#: Keys that scripts may rely on.
PUBLIC_KEYS = {
    "entry", "kind", "suite", "config", "status", "tflops", "latency_ms", "max_diff", "correct",
    "gpu", "blocks", "integrity", "speedup",
}  # fmt: skip


def manifest(name: str) -> str:
    return f"name: {name}\nclaims: {{headdims: [16, 32]}}\n"


def put(folder: Path, source: str = GOOD) -> Path:
    folder.mkdir(parents=True)
    (folder / "submission.py").write_text(source)
    (folder / "manifest.yaml").write_text(manifest(folder.name))
    return folder


def command(tmp_path: Path, entries: str, *extra: str, blocks: int = 5) -> list[str]:
    suite = tmp_path / "tiny.yaml"
    suite.write_text(SUITE.format(blocks=blocks))
    return [
        *(sys.executable, "run.py", "--submission", entries, "--suite", str(suite), "--json"),
        *("--results", str(tmp_path / "results"), "--leaderboard", str(tmp_path / "board.md")),
        *extra,
    ]


@pytest.fixture(scope="module")
def story(
    tmp_path_factory: pytest.TempPathFactory, typed: Callable[[Sequence[str]], tuple[int, str, str]]
) -> tuple[Path, int, list[dict[str, Any]]]:
    tmp_path = tmp_path_factory.mktemp("story")
    put(tmp_path / "good")
    put(tmp_path / "nan", GOOD.replace("scale=sm_scale)", "scale=sm_scale) * float('nan')"))
    put(tmp_path / "exits", "import os\nos._exit(0)\n" + GOOD)
    put(
        tmp_path / "segfault",
        "import ctypes\n" + GOOD.replace("return", "ctypes.string_at(0); return"),
    )
    put(
        tmp_path / "hangs",
        "import time\n" + GOOD.replace("    return", "    time.sleep(99)\n    return"),
    )
    names = ("good", "nan", "exits", "segfault", "hangs")
    _, _, *words = command(tmp_path, ",".join(str(tmp_path / name) for name in names))
    code, out, err = typed(words)
    assert out.startswith("{"), err
    return tmp_path, code, json.loads(out)["results"]


def of(results: list[dict[str, Any]], entry: str) -> list[dict[str, Any]]:
    return [result for result in results if result["entry"] == entry]


def test_every_case_asked_for_ends_in_exactly_one_status(
    story: tuple[Path, int, list[dict[str, Any]]],
) -> None:
    _, code, results = story
    keys = [(result["entry"], result["config"]) for result in results]
    assert len(keys) == len(set(keys)) == 6 * 2
    assert code == 1  # a submission failed


def test_an_honest_kernel_passes_beside_crashing_ones(
    story: tuple[Path, int, list[dict[str, Any]]],
) -> None:
    for result in of(story[2], "good") + of(story[2], "sdpa"):
        assert result["status"] == "PASSED", result["reason"]
        assert result["numerics_class"] == "exact"
        assert result["correct"] == 1
        assert result["blocks"] >= 4
        assert set(result) >= PUBLIC_KEYS
        assert result["speedup"]["against"] == "sdpa"
        assert len(result["samples"][0]["calls_ms"]) == 2


@pytest.mark.parametrize(
    ("entry", "status", "reason"),
    [
        ("nan", "NONFINITE", "NaN"),
        ("exits", "CRASHED", "exited with code 0"),
        ("segfault", "CRASHED", "SIGSEGV"),
        ("hangs", "TIMED_OUT", "took more than"),
    ],
)
def test_a_failure_has_its_status_and_no_time(
    story: tuple[Path, int, list[dict[str, Any]]], entry: str, status: str, reason: str
) -> None:
    first = of(story[2], entry)[0]
    assert first["status"] == status
    assert reason in first["reason"]
    assert first["latency_ms"] is None
    assert first["tflops"] is None


def test_the_secret_is_told_and_fits_its_commitment(
    story: tuple[Path, int, list[dict[str, Any]]],
) -> None:
    import hashlib

    secrets = {result["config"]: result["secret"] for result in story[2]}
    assert len(set(secrets.values())) == len(secrets)
    for result in story[2]:
        assert (
            hashlib.sha256(bytes.fromhex(result["secret"])).hexdigest()
            == result["secret_commitment"]
        )


def test_records_are_on_disk_and_the_board_follows_from_them(
    story: tuple[Path, int, list[dict[str, Any]]],
    typed: Callable[[Sequence[str]], tuple[int, str, str]],
) -> None:
    tmp_path, _, results = story
    lines = [
        line
        for file in (tmp_path / "results").rglob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    assert len(lines) == len(results)
    before = (tmp_path / "board.md").read_bytes()
    (tmp_path / "board.md").unlink()
    again = ["rank", "--results", str(tmp_path / "results"), "--board", str(tmp_path / "board.md")]
    assert typed(again)[0] == 0
    assert (tmp_path / "board.md").read_bytes() == before


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, start_run: Callable[..., Any]) -> None:
    put(tmp_path / "good")
    out, err = tmp_path / "out", tmp_path / "err"
    _, _, *words = command(tmp_path, str(tmp_path / "good"), blocks=300)
    process, deadline = start_run(words, out, err), time.monotonic() + 120
    while "one: block 30/" not in err.read_text() and time.monotonic() < deadline:
        assert process.poll() is None, err.read_text()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130, err.read_text()
    by_config = {(r["entry"], r["config"]): r for r in json.loads(out.read_text())["results"]}
    assert by_config["good", "one"]["samples"]
    assert by_config["good", "two"]["status"] == "INTERRUPTED"
    assert len(by_config) == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--submission triton_templat", "Did you mean 'triton_template'"),
        ("--submission triton_template --suite smok", "Did you mean 'smoke'"),
        ("--submission triton_template --seqlen 8kk", "write 512, 4096 or 8k"),
        ("--submission triton_template --baselines spda", "Did you mean 'sdpa'"),
    ],
)
def test_a_wrong_word_is_answered_with_the_next_move(
    words: str, message: str, tmp_path: Path, start_run: Callable[..., Any]
) -> None:
    assert start_run(words.split(), tmp_path / "out", tmp_path / "err").wait(60) == 2
    told = (tmp_path / "err").read_text()
    assert message in told
    assert "Traceback" not in told
