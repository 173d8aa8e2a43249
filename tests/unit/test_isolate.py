"""Processes: they end, all of them; their words are cleaned; their environment is an allow-list."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.process.child import Child, Jail, untrusted_env
from harness.process.text import plain_text


def test_text_of_strangers_is_plain() -> None:
    dirty = "\x1b[31mred\x1b[0m\n::set-output name=x::1\nfine\x07\r"
    assert plain_text(dirty) == "red\n: :set-output name=x::1\nfine"
    assert plain_text("a.cu(3): ::cuda::ptx is\n\tstd::x") == "a.cu(3): ::cuda::ptx is\n\tstd::x"


@given(
    st.lists(
        st.sampled_from(
            ["::", ":", "##[", "#", "[", "error", "\n", "\r", " ", "\t", "\x01", "\x1b[1m", "\x1b"]
            + ["\x9b", "\x85", "\x0b", "\u2028", "\u202e", "\ufeff", "\xa0", "\ue000", "é"]
        ),
        max_size=12,
    ).map("".join)
)
def test_no_line_of_a_stranger_is_an_order_to_a_ci_runner(dirty: str) -> None:
    plain = plain_text(dirty)
    assert plain_text(plain) == plain
    assert "##[" not in plain
    assert not any(line.lstrip().startswith("::") for line in plain.splitlines())
    assert not any(c in "\x1b\u202e\ufeff\u2028" or "\x80" <= c < "\xa0" for c in plain)


def test_the_environment_is_an_allow_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("GITHUB_TOKEN", "x")
    jail = Jail(
        cache=tmp_path,
        scratch=tmp_path,
        env={"TRITON_INTERPRET": "1"},
        source=tmp_path,
        house=tmp_path,
    )
    env = untrusted_env(jail)
    assert "AWS_SECRET_ACCESS_KEY" not in env
    assert "GITHUB_TOKEN" not in env
    assert env["HOME"] == env["ATTNBOARD_CACHE"] == str(tmp_path)
    assert env["TRITON_INTERPRET"] == "1"


def test_a_child_that_ends_says_how(tmp_path: Path) -> None:
    child = Child("harness.no_such_module", [], None, tmp_path / "log")
    assert child.ending(20) == "exited with code 1"
    assert "no_such_module" in child.log_tail()
    child.end()


def test_a_killed_child_is_told_by_its_signal(tmp_path: Path) -> None:
    child = Child("http.server", ["--help"], None, tmp_path / "log")
    child.pause()
    child.end()
    assert not child.alive


@pytest.mark.parametrize(
    ("number", "words"), [(9, "killed by SIGKILL"), (35, "killed by signal 35")]
)
def test_a_signal_without_a_name_is_told_by_its_number(
    tmp_path: Path, number: int, words: str
) -> None:
    child = Child("http.server", ["--help"], None, tmp_path / "log")
    os.kill(child.pid, number)
    assert child.ending(20) == words
    child.end()
