"""A specimen in one file: what it says reaches manifest and expectation."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from harness.cli.selftest import corpus as selftest_corpus
from harness.cli.selftest.specimen import unfold
from harness.errors import SuiteError
from harness.schema import Manifest

ONE = '''# %% b9_mine
"""Returns the answer of the call before.

Kept by shape.

---
status: [INCORRECT]
seen: somewhere
defence: fresh_inputs
min_latency_ms: 2.5
problem: attention_backward
claims: {headdims: [64]}
"""

from right_answer import attention
'''


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "tests" / "corpus" / "cheaters"
    folder.mkdir(parents=True)
    (folder.parent / "right_answer.py").write_text("def attention(): ...\n")
    return folder


def read(path: Path) -> dict[str, object]:
    found: dict[str, object] = yaml.safe_load(path.read_text())
    return found


def test_it_becomes_the_folder_that_a_run_takes(corpus: Path, tmp_path: Path) -> None:
    (corpus / "kept.py").write_text(ONE)
    (folder,) = unfold(corpus / "kept.py", tmp_path / "out")
    assert sorted(path.name for path in folder.iterdir()) == [
        "expect.yaml", "manifest.yaml", "right_answer.py", "submission.py",
    ]  # fmt: skip
    assert (folder / "submission.py").read_text() == ONE.partition("\n")[2]
    manifest = Manifest.model_validate(read(folder / "manifest.yaml"))
    assert (manifest.name, manifest.problem) == ("b9_mine", "attention_backward")
    assert manifest.description == "Returns the answer of the call before."
    assert manifest.claims.headdims == (64,)
    expect = selftest_corpus.Expectation.model_validate(read(folder / "expect.yaml"))
    assert expect.exploit == manifest.description
    assert (expect.seen, expect.min_latency_ms) == ("somewhere", 2.5)


def test_a_file_holds_many_and_further_files_of_them(corpus: Path, tmp_path: Path) -> None:
    other = ONE.replace("b9_mine", "b8_other")
    (corpus / "kept.py").write_text(
        f"# Alike.\n\n{ONE}\n\n{other}\n# %% b8_other/build/deep.py\nX = 1\n"
    )
    (corpus / "b1_more.py").write_text(ONE.partition("\n")[2])
    found = selftest_corpus.load_corpus(tmp_path)
    assert [specimen.name for specimen in found] == ["b1_more", "b8_other", "b9_mine"]
    assert {specimen.problem for specimen in found} == {"attention_backward"}
    assert (found[1].folder / "build" / "deep.py").read_text() == "X = 1\n"
    bodies = [(s.folder / "submission.py").read_text() for s in found]
    assert bodies == [ONE.partition("\n")[2]] * 3


def test_a_control_has_no_exploit(corpus: Path, tmp_path: Path) -> None:
    (corpus / "x.py").write_text(
        '# %% plain\n"""Plain.\n\n---\nstatus: [PASSED]\nwhy: a reason\n"""\n'
    )
    (folder,) = unfold(corpus / "x.py", tmp_path / "out")
    assert read(folder / "expect.yaml") == {"status": ["PASSED"], "why": "a reason"}
    assert not (folder / "right_answer.py").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"x.py:8: no '---' in its docstring"),
        ("x = 1\n", r"x.py:9: no '---' in its docstring"),
        ('\n"""Says nothing."""\n', r"x.py:10: no '---'"),
        ('"""A.\n\n---\njust words\n"""\n', r"x.py:9: no 'key: value' lines"),
        ('"""A.\n\n---\nseen: a\nstatus: [\n"""\n', r"x.py:13: not YAML"),
        ('"""A."""\ndef f(:\n', r"x.py:10: "),
        ('"""A.\n\n---\nstatus: [INCORRECT]\nsene: x\n"""\n', r"sene"),
        (
            '"""A.\n\n---\nwhy: x\n"""\n\n# %% b9_mine\n"""A.\n\n---\nwhy: x\n"""\n',
            r"x.py:15: a second",
        ),
    ],
)
def test_a_head_that_is_none_is_named_with_its_line(
    text: str, message: str, corpus: Path, tmp_path: Path
) -> None:
    before = "# Alike.\n\n# %% b1_good\n" + '"""A.\n---\nstatus: [PASSED]\n"""\n'
    (corpus / "x.py").write_text(f"{before[:-1]}\n# %% b9_mine\n{text}")
    with pytest.raises(SuiteError, match=message) as caught:
        selftest_corpus.load_corpus(tmp_path)
    assert caught.value.hint
