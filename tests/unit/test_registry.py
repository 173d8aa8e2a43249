"""Names → entrants: every mistake is told with file, line and the nearest spelling."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import SubmissionError
from harness.problems import get_problem
from harness.registry import find_entrants, load_entrant
from harness.schema import Entrant, Kind

PROBLEM = get_problem("attention_forward")
GOOD = "def custom_attention_forward(q, k, v, causal=True, sm_scale=None):\n    return q\n"


def make(root: Path, name: str = "mine", source: str = GOOD, manifest: str = "") -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "submission.py").write_text(source)
    (folder / "manifest.yaml").write_text(f"name: {name}\n{manifest}")
    return folder


def load(path: Path) -> Entrant:
    return load_entrant(path, Kind.SUBMISSION, PROBLEM)


def test_a_folder(tmp_path: Path) -> None:
    entrant = load(
        make(tmp_path, manifest="language: triton\nclaims: {causal: true, headdims: [64]}\n")
    )
    assert entrant.name == "mine"
    assert entrant.manifest.claims.causal == "true"
    assert len(entrant.source_sha256) == 64


def test_a_bare_file_needs_no_manifest(tmp_path: Path) -> None:
    path = tmp_path / "fast.py"
    path.write_text(GOOD)
    assert load(path).name == "fast"


def test_the_hash_follows_the_source_and_not_the_notes(tmp_path: Path) -> None:
    folder = make(tmp_path)
    before = load(folder).source_sha256
    (folder / "NOTES.md").write_text("words")
    assert load(folder).source_sha256 == before
    (folder / "kernel.cu").write_text("//")
    assert load(folder).source_sha256 != before


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ("langage: cuda\n", r"manifest.yaml:2: unknown key 'langage'\n.*Did you mean 'language'"),
        (
            "claims: {headdimms: [64]}\n",
            r"manifest.yaml:2: unknown key 'claims.headdimms'\n.*'headdims'",
        ),
        ("language: fortran\n", r"manifest.yaml:2: language: .*fortran"),
        ("entry: ../other.py\n", r"manifest.yaml:2: entry: .*leaves the folder"),
        ("entry: /etc/passwd.py\n", r"leaves the folder"),
        ("entry: [\n", r"manifest.yaml:3: not YAML"),
        ("entry: absent.py\n", r"entry 'absent.py' is missing"),
    ],
)
def test_a_wrong_manifest(tmp_path: Path, manifest: str, message: str) -> None:
    with pytest.raises(SubmissionError, match=f"(?s){message}") as caught:
        load(make(tmp_path, manifest=manifest))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(:\n", r"submission.py:1: does not parse"),
        (
            "def custom_atention_forward(q, k, v, causal=True, sm_scale=None): ...\n",
            "has no function .custom_attention_forward.",
        ),
        (
            "\n\ndef custom_attention_forward(q, k, v, casual=True, sm_scale=None): ...\n",
            r":3: .*\n.*'causal'",
        ),
        ("def custom_attention_forward(q, k): ...\n", r"should take \(q, k, v, causal, sm_scale\)"),
        ("x = 1\n", "has no function 'custom_attention_forward'"),
    ],
)
def test_a_wrong_source(tmp_path: Path, source: str, message: str) -> None:
    with pytest.raises(SubmissionError, match=f"(?s){message}"):
        load(make(tmp_path, source=source))


def test_an_imported_function_is_accepted(tmp_path: Path) -> None:
    load(make(tmp_path, source="from kernel import custom_attention_forward\n"))


def test_a_link_out_of_the_folder(tmp_path: Path) -> None:
    folder = make(tmp_path)
    (folder / "secret").symlink_to("/etc/hostname")
    with pytest.raises(SubmissionError, match="links out of its folder"):
        load(folder)


def test_names_lists_and_all(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make(tmp_path, name)
    found = find_entrants(["two,one", "one"], tmp_path, Kind.SUBMISSION, PROBLEM)
    assert [entrant.name for entrant in found] == ["two", "one"]
    assert [e.name for e in find_entrants(["all"], tmp_path, Kind.SUBMISSION, PROBLEM)] == [
        "one",
        "two",
    ]


def test_an_unknown_name_offers_the_nearest(tmp_path: Path) -> None:
    make(tmp_path, "triton_template")
    with pytest.raises(SubmissionError, match="Did you mean 'triton_template'"):
        find_entrants(["triton_templat"], tmp_path, Kind.SUBMISSION, PROBLEM)


def test_a_step_carries_its_path(tmp_path: Path) -> None:
    make(tmp_path, "cuda_x")
    make(tmp_path / "cuda_x" / "steps", "01_naive")
    found = find_entrants(["cuda_x/steps/01_naive"], tmp_path, Kind.SUBMISSION, PROBLEM)
    assert found[0].name == "cuda_x/steps/01_naive"


def test_the_name_is_the_folder(tmp_path: Path) -> None:
    folder = make(tmp_path)
    (folder / "manifest.yaml").write_text("name: other\n")
    with pytest.raises(SubmissionError, match="write name: mine"):
        load(folder)
