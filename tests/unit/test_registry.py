"""Names → entrants: every mistake is told with file, line and the nearest spelling."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import SubmissionError
from harness.problems import get_problem
from harness.registry import entry_name, find_entrants, ladders, load_entrant
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
        ("\tlanguage: cuda\n", r"manifest.yaml:2: not YAML"),
        ("author: 2024-13-45\n", r"manifest.yaml: not YAML: month"),
        (f"author: {'[' * 2000}{']' * 2000}\n", r"manifest.yaml: nested too deeply"),
        ("author: me\nauthor: you\n", r"manifest.yaml:3: 'author' is written twice.* line 2"),
        ("claims: {causal: both, causal: false}\n", r"manifest.yaml:2: 'causal' is written twice"),
        ("claims: &a {headdims: *a}\n", r"manifest.yaml:2: claims.headdims: "),
        ("claims: {headdims: many}\n", r"manifest.yaml:2: claims.headdims: expected a list.*many"),
        ("claims: {headdims: []}\n", r"manifest.yaml:2: claims.headdims: "),
        ("claims: {headdims: [0]}\n", r"manifest.yaml:2: claims.headdims.0: .*got 0"),
        ("claims: {dtypes: []}\n", r"manifest.yaml:2: claims.dtypes: "),
        ("claims: {seqlen_multiple: .nan}\n", r"manifest.yaml:2: claims.seqlen_multiple: .*nan"),
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
            "has no function .*rename 'custom_atention_forward' to custom_attention_forward\\(q, k, v",
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


def test_a_manifest_that_is_not_utf_8(tmp_path: Path) -> None:
    folder = make(tmp_path)
    (folder / "manifest.yaml").write_bytes(b"name: mine\nauthor: \xe9\n")
    with pytest.raises(SubmissionError, match=r"manifest.yaml:2: byte 0xe9 is not UTF-8"):
        load(folder)


def test_a_manifest_that_is_a_folder(tmp_path: Path) -> None:
    folder = make(tmp_path)
    (folder / "manifest.yaml").unlink()
    (folder / "manifest.yaml").mkdir()
    with pytest.raises(SubmissionError, match=r"manifest.yaml: cannot be read \(Is a directory\)"):
        load(folder)


def test_a_file_name_that_no_row_can_carry(tmp_path: Path) -> None:
    path = tmp_path / "my kernel.py"
    path.write_text(GOOD)
    with pytest.raises(SubmissionError, match=r"no name for a row.*\n.*my_kernel\.py'"):
        load(path)
    folder = make(tmp_path, name="my folder")
    (folder / "manifest.yaml").unlink()
    with pytest.raises(SubmissionError, match=r"no name for a row.*\n.*my_folder'"):
        load(folder)


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


# ------------------------------------------------------------------ a single .cu and its ladder
SECTION = """
  kernels:
    - {name: f, headdims: [128, 64], causal: "true", grid: [S], block: [32], args: [q]}
"""


def make_ladder(root: Path, *names: str, described: str | None = None) -> Path:
    """A submission whose steps/ hold `names` and a launch.yaml (of all of them, or `described`)."""
    make(root, "cuda_x", manifest="author: me\nneeds: {compute_capability: '9.0', tools: [nvcc]}\n")
    steps = root / "cuda_x" / "steps"
    steps.mkdir()
    for name in names:
        (steps / name).write_text(f"// {name} in words.\n__global__ void f() {{}}\n")
    sections = "".join(f"{name}:{SECTION}" for name in names)
    (steps / "launch.yaml").write_text(sections if described is None else described)
    return steps


def find(root: Path, *names: str) -> list[Entrant]:
    return find_entrants(names, root, Kind.SUBMISSION, PROBLEM)


@pytest.mark.parametrize(
    "name", ["cuda_x/steps/01_a.cu", "cuda_x/steps/01_a", "{root}/cuda_x/steps/01_a.cu"]
)
def test_a_described_cu_is_an_entrant(tmp_path: Path, name: str) -> None:
    make_ladder(tmp_path, "01_a.cu")
    (entrant,) = find(tmp_path, name.format(root=tmp_path))
    manifest = entrant.manifest
    assert (entrant.name, manifest.entry) == ("cuda_x/steps/01_a", "01_a.cu")
    assert (manifest.language, manifest.author, manifest.description) == (
        "cuda",
        "me",
        "01_a.cu in words.",
    )
    assert (manifest.needs.compute_capability, manifest.needs.packages) == (
        "9.0",
        ("cuda-bindings",),
    )
    assert (manifest.claims.headdims, manifest.claims.causal) == ((64, 128), "true")
    assert manifest.launch is not None


def test_a_ladder_is_all_its_rungs(tmp_path: Path) -> None:
    make_ladder(tmp_path, "02_b.cu", "01_a.cu")
    found = find(tmp_path, "cuda_x/steps", "cuda_x/steps/02_b.cu")
    assert [entrant.name for entrant in found] == ["cuda_x/steps/01_a", "cuda_x/steps/02_b"]
    assert ladders(tmp_path) == [tmp_path / "cuda_x" / "steps"]


def test_the_entry_of_a_manifest_is_its_submission(tmp_path: Path) -> None:
    folder = make(tmp_path, manifest=f"entry: kernel.cu\nlaunch:{SECTION}")
    (folder / "kernel.cu").write_text("//")
    assert find(tmp_path, "mine/kernel.cu") == find(tmp_path, "mine")
    make(tmp_path, name="yours")
    assert find(tmp_path, "yours/submission.py") == find(tmp_path, "yours")


def test_a_rung_s_hash_follows_what_its_compiler_reads(tmp_path: Path) -> None:
    steps = make_ladder(tmp_path, "01_a.cu", "02_b.cu", "03_c.cu")
    (steps / "01_a.cu").write_text('#include "02_b.cu"\n')

    def hashed() -> str:
        return load(steps / "01_a.cu").source_sha256

    seen = [hashed()]
    (steps / "03_c.cu").write_text("// another rung is another rung's business")
    assert hashed() == seen[0]
    for name, text in [("01_a.cu", '// x\n#include "02_b.cu"'), ("02_b.cu", "//"), ("x.cuh", "//")]:
        (steps / name).write_text(text)
        seen.append(hashed())
    launch = steps / "launch.yaml"
    launch.write_text(launch.read_text().replace("block: [32]", "block: [64]"))
    seen.append(hashed())
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(
    ("described", "message"),
    [
        (
            None,
            r"01_a.cu: nothing says how its kernels are launched\n.*write '01_a.cu:'.*launch.yaml",
        ),
        ("01_aa.cu: {}\n", r"kernels of 01_a.cu are launched\n.*Did you mean '01_aa.cu'"),
        ("02_b.cu: {}\n", r"kernels of 01_a.cu are launched\n.*write '01_a.cu:'"),
        ("01_a.cu:\n", "launch.yaml: '01_a.cu' holds no launch section"),
        ("- 1\n", r"launch.yaml:1: expected 'FILE.cu:'"),
        ("01_a.cu: [\n", r"launch.yaml:2: not YAML"),
        ("01_a.cu: {kernels: []}\n", r"launch.yaml: 01_a.cu: launch.kernels: "),
    ],
)
def test_a_cu_that_nothing_describes(tmp_path: Path, described: str | None, message: str) -> None:
    steps = make_ladder(tmp_path, "01_a.cu", "02_b.cu", described=described or "")
    if described is None:
        (steps / "launch.yaml").unlink()
    with pytest.raises(SubmissionError, match=f"(?s){message}") as caught:
        find(tmp_path, "cuda_x/steps/01_a.cu")
    assert caught.value.hint


def test_a_ladder_without_a_description_of_a_rung(tmp_path: Path) -> None:
    make_ladder(tmp_path, "01_a.cu", "02_b.cu", described=f"01_a.cu:{SECTION}")
    with pytest.raises(SubmissionError, match=r"kernels of 02_b.cu are launched"):
        find(tmp_path, "cuda_x/steps")
    make_ladder(tmp_path / "other", "01_a.cu", described=f"01_a.cu:{SECTION}09_z.cu:{SECTION}")
    with pytest.raises(SubmissionError, match=r"describes '09_z.cu', which is not there"):
        find(tmp_path / "other", "cuda_x/steps")


def test_a_misspelt_rung_offers_the_nearest(tmp_path: Path) -> None:
    make_ladder(tmp_path, "01_naive.cu")
    with pytest.raises(SubmissionError, match="Did you mean 'cuda_x/steps/01_naive'"):
        find(tmp_path, "cuda_x/steps/01_nave.cu")


@pytest.mark.parametrize(
    "text", ["a/steps/01", "a/steps/01.cu", "./submissions/a/steps/01.cu", "a/steps/01/"]
)
def test_a_path_and_a_name_are_one_entry(text: str) -> None:
    assert entry_name(text) == "a/steps/01"


def test_the_name_is_the_folder(tmp_path: Path) -> None:
    folder = make(tmp_path)
    (folder / "manifest.yaml").write_text("name: other\n")
    with pytest.raises(SubmissionError, match="write name: mine"):
        load(folder)
