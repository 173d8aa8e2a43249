"""Names → entrants: every mistake is told with file, line and the nearest spelling."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import run as story
from harness.catalog import entrants, source_files, yaml_model
from harness.catalog import steps as steps_module
from harness.catalog.entrants import (
    entry_name,
    find_entrants,
    gather,
    known,
    ladders,
    load_entrant,
    private_folder,
    read_again,
    stage,
)
from harness.catalog.launch_spec import parse_launch
from harness.cli import main
from harness.cli.commands import baselines, list_
from harness.errors import SubmissionError, did_you_mean
from harness.measure.machine import inspect_machine, version_of
from harness.problems import get_problem
from harness.schema import Entrant, Kind

PROBLEM = get_problem("attention_forward")
#: 399 bytes that mean 10 to the power of 9 values; and a nesting that no line shows.
BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
CHAIN = "a: &a0 [x]\n" + "".join(f"k{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 60))
GOOD = "def custom_attention_forward(q, k, v, causal=True, sm_scale=None):\n    return q\n"
HELPER = '''"""The same as custom_attention_forward; def custom_attention_forwards are others."""
from bare import custom_attention_forward  # def it there
custom_attention_forward(q, k, v) == 1 or time(custom_attention_forward, name="x")
custom_attention_forward.warm = 1
'''


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


def test_a_folder_of_many_is_every_kind_of_entry(tmp_path: Path) -> None:
    make(tmp_path, "told")
    make(tmp_path, "untold")
    (tmp_path / "untold" / "manifest.yaml").unlink()
    sources = {"bare.py": GOOD, "helper.py": "x = 1\n", "bad.py": GOOD[:-9], "time.py": HELPER}
    for name, source in sources.items():
        (tmp_path / name).write_text(source)
    os.mkfifo(tmp_path / "fifo.py")
    found, refused = gather([str(tmp_path)], tmp_path / "none", Kind.SUBMISSION, PROBLEM)
    assert [entrant.name for entrant in found] == ["bare", "told", "untold"]
    assert [Path(r.message.split(":")[0]).name for r in refused] == ["bad.py", "fifo.py"]


def test_two_of_a_folder_that_share_a_name_are_left_out_alone(tmp_path: Path) -> None:
    """Whose row would it be? Nobody of the folder ran."""
    many, root = tmp_path / "many", tmp_path / "none"
    make(many, "a")
    for name in "ab":
        (many / f"{name}.py").write_text(GOOD)
    found, refused = gather([f"{many},{many}"], root, Kind.SUBMISSION, PROBLEM)
    assert [entrant.name for entrant in found] == ["b"]
    assert len(refused) == 2
    assert all("an entry called 'a', which is taken" in str(each) for each in refused)
    found, refused = gather([f"{many}/a.py,{many}"], root, Kind.SUBMISSION, PROBLEM)
    assert [entrant.entry_path.name for entrant in found] == ["a.py", "b.py"]
    assert [Path(each.message.split(":")[0]).parent.name for each in refused] == ["a"]
    (many / "b.py").unlink()
    with pytest.raises(SubmissionError, match="taken"):
        find(root, str(many))


@pytest.mark.parametrize(
    "bound",
    [
        "def NAME(q, k, v, *, causal): ...",
        "\ufeffdef NAME(q): ...",
        "if x:\n    NAME = torch.compile(f)",
        "NAME: Callable[..., Any] = f",
        "from flash_attn import flash_attn_func as NAME",
        "from flash_attn import (\n    flash_attn_func as NAME,\n)",
    ],
)
def test_who_gives_the_function_its_name_is_no_helper(tmp_path: Path, bound: str) -> None:
    (tmp_path / "other.py").write_text(HELPER)
    (tmp_path / "bare.py").write_text(bound.replace("NAME", PROBLEM.function))
    assert [path.name for path in entrants._resolve(str(tmp_path), tmp_path / "none")] == [
        "bare.py"
    ]


def test_a_large_file_is_refused_before_anything_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "table.py").write_text("x = 1\n" + " " * (1 << 20))
    (tmp_path / "late.py").write_text(" " * (1 << 20) + f"\n{GOOD}")
    (tmp_path / "sound.py").write_text(GOOD)
    searched: list[int] = []
    search = entrants.re.search  # type: ignore[attr-defined]

    def counted(pattern: str, text: str) -> object:
        searched.append(len(text))
        return search(pattern, text)

    monkeypatch.setattr(entrants.re, "search", counted)  # type: ignore[attr-defined]
    found, refused = gather([str(tmp_path)], tmp_path / "root", Kind.SUBMISSION, PROBLEM)
    assert [entrant.name for entrant in found] == ["sound"]
    assert [str(error).partition("\n")[0].split(": ")[1] for error in refused] == [
        f"{(1 << 20) + 1 + len(GOOD)} bytes of Python, at most 524288"
    ]
    assert max(searched) < 1000


def test_a_manifest_of_many_wrong_keys_is_refused_as_soon_as_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was searched for in all of the file: 17 s for 64 KiB."""
    asked = []
    line_of = yaml_model.line_of
    monkeypatch.setattr(yaml_model, "line_of", lambda *at: asked.append(at) or line_of(*at))
    folder = make(tmp_path, manifest="".join(f"k{n}: 1\n" for n in range(4000)))
    with pytest.raises(SubmissionError, match=r":2: unknown key 'k0'.*\n.*:3: unknown") as caught:
        load(folder)
    assert "these 10 lines" in caught.value.hint
    assert len(asked) <= 110


def test_a_bare_file_computes_what_it_defines_not_what_it_speaks_of(tmp_path: Path) -> None:
    path = tmp_path / "grads.py"
    path.write_text(HELPER + "def custom_attention_backward(q, k, v): ...\n")
    assert entrants.problem_of([str(path)], tmp_path).name == "attention_backward"


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
        (f"author: {'9' * 65}\n", r"manifest.yaml:2: not YAML: a number of 65 characters"),
        ("author: !!binary aGk=\n", r"manifest.yaml:2: not YAML: tag '.*binary' is not taken"),
        ('author: "\\uD800"\n', r"manifest.yaml:2: not YAML: half a surrogate pair"),
        ("?\n", r"manifest.yaml:2: key '' is no text"),
        ("claims: {7: 8}\n", r"manifest.yaml:2: key '7' is no text"),
        ("launch: &a {x: *a}\n", r"manifest.yaml:2: not YAML: an alias inside its own anchor"),
        (BOMB, r"manifest.yaml:6: not YAML: aliases make too much of it"),
        (f"author: [{'a, ' * 9000}]\n", r"manifest.yaml:2: not YAML: more than 8192 values"),
        (CHAIN, r"manifest.yaml:2\d: not YAML: aliases make too much of it"),
        (f"description: {'long ' * 10_000}\n", r"its manifest says 5\d+ bytes, at most 32768"),
        (f"# {'x' * 70_000}\n", r"manifest.yaml: 700\d\d bytes, at most 65536"),
        ('"\\e[31mred": 1\n', r"manifest.yaml:2: unknown key ''\\x1b\[31mred''"),
        (f"author: {'[' * 2000}{']' * 2000}\n", r"manifest.yaml:2: not YAML: nested too deeply"),
        ("author: me\nauthor: you\n", r"manifest.yaml:3: 'author' is written twice.* line 2"),
        ("claims: {causal: both, causal: false}\n", r"manifest.yaml:2: 'causal' is written twice"),
        ("claims: {headdims: many}\n", r"manifest.yaml:2: claims.headdims: expected a list.*many"),
        ("claims: {headdims: []}\n", r"manifest.yaml:2: claims.headdims: "),
        ("claims: {headdims: [0]}\n", r"manifest.yaml:2: claims.headdims.0: .*got 0"),
        ("claims: {headdims: [yes]}\n", r"manifest.yaml:2: claims.headdims.0: .*got True"),
        ('needs: {packages: [""]}\n', r"manifest.yaml:2: needs.packages.0: .*got ''"),
        ("needs: {packages: [../x]}\n", r"manifest.yaml:2: needs.packages.0: "),
        (f"needs: {{packages: [{'a' * 81}]}}\n", r"manifest.yaml:2: needs.packages.0: "),
        (f"needs: {{packages: [{'a, ' * 51}]}}\n", r"manifest.yaml:2: needs.packages: "),
        ("needs: {tools: [/usr/bin/env]}\n", r"manifest.yaml:2: needs.tools.0: "),
        ('needs: {tools: ["a\\0b"]}\n', r"manifest.yaml:2: needs.tools.0: "),
        (
            f"needs: {{compute_capability: '{'9' * 5000}.0'}}\n",
            r"manifest.yaml:2: needs.compute_capability: ",
        ),
        ('needs: {compute_capability: "8.11"}\n', r"manifest.yaml:2: needs.compute_capability: "),
        ('version_of: " "\n', r"manifest.yaml:2: version_of"),
        ("accumulates: {dq: int8}\n", r"manifest.yaml:2: accumulates.dq: .*int8"),
        (
            "install: pip install x; rm -rf .\n",
            r"manifest.yaml:2: install: .*got 'pip install x; rm",
        ),
        ("install: pip install x > y\n", r"manifest.yaml:2: install: "),
        ('install: "pip install\\nrm x"\n', r"manifest.yaml:2: install: "),
        ("install: pip install $(id)\n", r"manifest.yaml:2: install: "),
        ("claims: {dtypes: []}\n", r"manifest.yaml:2: claims.dtypes: "),
        ("claims: {seqlen_multiple: .nan}\n", r"manifest.yaml:2: claims.seqlen_multiple: .*nan"),
        (f"claims: {{seqlen_multiple: {10**30}}}\n", r"manifest.yaml:2: claims.seqlen_multiple: "),
        (f"claims: {{seqlen_min: {10**30}}}\n", r"manifest.yaml:2: claims.seqlen_min: "),
        (f"claims: {{headdims: [{10**30}]}}\n", r"manifest.yaml:2: claims.headdims.0: "),
    ],
)
def test_a_wrong_manifest(tmp_path: Path, manifest: str, message: str) -> None:
    with pytest.raises(SubmissionError, match=f"(?s){message}") as caught:
        load(make(tmp_path, manifest=manifest))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("more", "claims", "gives"),
    [
        ("", "", False),
        (", return_lse=False", "", True),
        (", *, return_lse=False", "lse: true", True),
        (", **more", "lse: false", False),
    ],
)
def test_who_takes_return_lse_claims_it(
    tmp_path: Path, more: str, claims: str, gives: bool
) -> None:
    source = f"def custom_attention_forward(q, k, v, causal=True, sm_scale=None{more}): ...\n"
    entrant = load(make(tmp_path, source=source, manifest=f"claims: {{{claims}}}\n"))
    assert entrant.manifest.claims.lse is gives


@pytest.mark.parametrize(
    ("more", "said", "has"),
    [(", return_lse=False", "false", "a parameter"), ("", "true", "no parameter")],
)
def test_who_denies_that_parameter_is_refused(
    tmp_path: Path, more: str, said: str, has: str
) -> None:
    source = f"def custom_attention_forward(q, k, v, causal=True, sm_scale=None{more}): ...\n"
    with pytest.raises(SubmissionError, match=f"lse: {said}, but its function has {has}"):
        load(make(tmp_path, source=source, manifest=f"claims: {{lse: {said}}}\n"))


#: The codec that the first line names takes more than a minute of processor for it.
PUNYCODE = f"# coding: punycode\n{'a' * 200_000}-{'b' * 280_000}"


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
        (f"x = 1\ny = {'-' * 100_000}1\n", r"submission.py:2: does not parse: nested too deeply"),
        (f"x = {'-' * 100_000}1\n", r"submission.py:1: does not parse: nested too deeply"),
        (f"x = {'(' * 300}{')' * 300}\n", r"submission.py:1: does not parse: too many nested"),
        (f"x = {'9' * 5_000}\n", r"submission.py:1: does not parse: Exceeds the limit"),
        ("x = 1\0\n", r"submission.py:1: does not parse: .*null bytes"),
        ("# coding: wrong\n", r"submission.py:1: does not parse: .*wrong"),
        ("x = 1\n# vim: set fileencoding=latin-1 :\n", r"submission.py:2: .*encoding latin-1"),
        (PUNYCODE, r"submission.py:1: does not parse: encoding punycode\n.*save the file as UTF-8"),
        (f"x = 1\n{'#' * 600_000}\n", "600007 bytes of Python, at most 524288"),
        (
            f"def custom_attention_forward({', '.join(f'a{i}' for i in range(99))}): ...\n",
            r"a11, …\) should",
        ),
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
    with pytest.raises(SubmissionError, match=r"manifest.yaml: is a folder"):
        load(folder)


@pytest.mark.parametrize("name", ["x.py.py", "x.cu.py"])
def test_a_file_that_would_have_the_name_of_a_file_is_no_entry(tmp_path: Path, name: str) -> None:
    """`show x.py` told of x, somebody else's."""
    (tmp_path / name).write_text(GOOD)
    with pytest.raises(SubmissionError, match="is no name for a row") as caught:
        find_entrants([str(tmp_path / name)], tmp_path, Kind.SUBMISSION, None)
    assert caught.value.hint.endswith(f"{tmp_path}/{name[:-3].replace('.', '_')}.py")


def test_a_file_name_that_no_row_can_carry(tmp_path: Path) -> None:
    path = tmp_path / "my kernel.py"
    path.write_text(GOOD)
    with pytest.raises(SubmissionError, match=r"no name for a row.*\n.*my_kernel\.py$"):
        load(path)
    folder = make(tmp_path, name="my folder")
    (folder / "manifest.yaml").unlink()
    with pytest.raises(SubmissionError, match=r"no name for a row.*\n.*my_folder$"):
        load(folder)


@pytest.mark.parametrize("kind", ["bare", "folder", "called like a file", "rung"])
@pytest.mark.parametrize(
    "name",
    [
        *("a'; touch PWNED; echo '", "a\n  next: touch PWNED", "$(PWNED)"),
        *("ri\u0221val", "ri##[val", "ri  val", "ri python run.py val"),
    ],
)
def test_a_name_is_nothing_to_type(tmp_path: Path, kind: str, name: str) -> None:
    """What is told of it is two lines, and the second one renames it and does nothing else."""
    root, path = tmp_path / "root", tmp_path / f"{name}.py"
    if kind == "bare":
        path.write_text(GOOD)
    elif kind == "rung":
        path = make_ladder(tmp_path, f"{name}.cu")
        (path / "launch.yaml").write_text(f"{json.dumps(name + '.cu')}:{SECTION}")
        root = path.parent.parent
    else:
        path = path if kind == "called like a file" else path.with_suffix("")
        make(tmp_path, path.name)
        (path / "manifest.yaml").unlink()
    with pytest.raises(SubmissionError) as caught:
        find_entrants([str(path)], root, Kind.SUBMISSION, PROBLEM)
    first, second = str(caught.value).split("\n")
    assert "no name for a row" in first or "a folder called like a file" in first
    if "\n" in name or "ri" in name:  # printed it would be another's: `rival`, `ri val`
        assert second.startswith("  next: rename it")
    else:
        words = shlex.split(second.split("next: ")[1].partition(", and")[0])
        assert words[:3] == ["mv", "-nT", "--"]
        assert Path(words[3]).exists()
        assert words[4:] == [str(Path(words[3]).with_name(Path(words[4]).name))]


@pytest.mark.parametrize("name", ["~hon", "a b.py", "submission .py", "~hon.py"])
def test_no_command_is_told_that_puts_a_hand_in_over_or_into_anothers(
    tmp_path: Path, name: str
) -> None:
    """Once pasted, `mv 'a b.py' a_b.py` put one stranger's file in another's place."""
    make(tmp_path, "hon")
    for file in ("a_b.py", "hon.py"):
        (tmp_path / file).write_text(GOOD)
    path = tmp_path / name
    if path.suffix:
        path.write_text(GOOD)
    else:
        (make(tmp_path, name) / "manifest.yaml").unlink()
    with pytest.raises(SubmissionError, match="next: rename it"):
        find_entrants([str(path)], tmp_path, Kind.SUBMISSION, PROBLEM)


def test_a_folder_whose_name_is_none_is_told_by_one_line_and_is_nobody(tmp_path: Path) -> None:
    """`list`, `rank` and words of the command line that were misspelt speak of every entry."""
    make(tmp_path, "good")
    make(tmp_path, "my kernel")
    make(tmp_path, "x\n::error::forged\nPASSED rival")
    for word in ("all", str(tmp_path)):
        found, refused = gather([word], tmp_path, Kind.SUBMISSION, PROBLEM)
        assert [entrant.name for entrant in found] == ["good"]
        assert [str(cause).count("\n") for cause in refused] == [1, 1]
        assert "mv " in refused[0].hint
    assert known(tmp_path) == [tmp_path / "good"]


def test_an_imported_function_is_accepted(tmp_path: Path) -> None:
    load(make(tmp_path, source="from kernel import custom_attention_forward\n"))


def test_two_runs_that_stage_the_same_source_leave_each_other_s_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who came second took the first one's for damaged, and the first found nothing there."""
    files, target = [("a.py", b"x = 1"), ("b/c.py", b"y = 2")], tmp_path / "staged"
    really, kept = source_files.tempfile.mkdtemp, list[int]()

    def meanwhile(**how: object) -> str:
        if not kept:
            kept.append(0)
            source_files.lay_out(files, target)
            kept[0] = target.stat().st_ino
        return really(**how)

    monkeypatch.setattr(source_files.tempfile, "mkdtemp", meanwhile)
    source_files.lay_out(files, target)
    assert target.stat().st_ino == kept[0]
    (target / "more.pyc").touch()  # and what is damaged is replaced
    source_files.lay_out(files, target)
    assert source_files.holds(target, files)


def test_a_file_that_becomes_a_link_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at, swapped, opened: 30 of 60,000 tries gave its owner what he may not read."""
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a.txt").write_text("fine")
    really = os.open

    def swapped(path: Path, flags: int) -> int:
        (tmp_path / "link").symlink_to(tmp_path / "secret")
        (tmp_path / "link").rename(tmp_path / "x" / "a.txt")
        return really(path, flags)

    monkeypatch.setattr(source_files.os, "open", swapped)
    with pytest.raises(SubmissionError, match="links out of its folder"):
        source_files.read(tmp_path / "x", ["a.txt"])


def test_what_is_no_file_of_a_folder_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest was a link to a device of the host, or to a pipe: to open one may be an order."""
    (tmp_path / "x").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("secret")
    opened: list[str] = []
    really = os.open

    def noted(path: Path | str, flags: int) -> int:
        opened.extend([] if flags & os.O_PATH else [os.path.realpath(path)])
        return really(path, flags)

    monkeypatch.setattr(source_files.os, "open", noted)
    for target in ("pipe", "file"):
        link = tmp_path / "x" / target
        link.symlink_to(tmp_path / target)
        with pytest.raises(SubmissionError, match="links out of its folder"):
            source_files.read(tmp_path / "x", [target])
        assert str(tmp_path / target) not in opened
    with pytest.raises(SubmissionError, match="is no regular file"):
        source_files.read_file(tmp_path / "pipe", 9)
    assert str(tmp_path / "pipe") not in opened
    assert source_files.read_file(tmp_path / "file", 9) == b"secret"
    assert str(tmp_path / "file") in opened, "a file is, once"


@pytest.mark.parametrize("step", ["_entries_of", "load_entrant"])
def test_a_folder_that_may_not_be_entered_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Of mode 744, where the run is an ordinary user's: it ended as a fault of the harness."""
    evil, good = make(tmp_path, "evil"), make(tmp_path, "good")
    really = getattr(entrants, step)

    def denied(path: Path, *rest: object) -> object:
        if path == evil:
            raise PermissionError(13, "Permission denied")
        return really(path, *rest)

    monkeypatch.setattr(entrants, step, denied)
    words = [str(evil), str(good)]
    found, refused = gather(words, tmp_path / "submissions", Kind.SUBMISSION, PROBLEM)
    assert [each.name for each in found] == ["good"]
    assert "evil: cannot be read (Permission denied)" in refused[0].message
    assert refused[0].hint == "check the path and its permissions"


def test_the_name_is_of_where_it_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link took its place meanwhile, to a folder below a rival's: the row was called so."""
    root = tmp_path / "submissions"
    rivals = root / "bob" / "ghost"
    mine = make(tmp_path)
    really = source_files.names_in

    def exchanged(folder: Path) -> list[str]:
        found = really(folder)
        rivals.mkdir(parents=True)
        mine.rename(tmp_path / "was")
        mine.symlink_to(rivals)
        return found

    monkeypatch.setattr(entrants, "names_in", exchanged)
    monkeypatch.setattr(entrants, "read", lambda *_: (("submission.py", GOOD.encode()),))
    assert load_entrant(mine, Kind.SUBMISSION, None, root).name == mine.name


def test_a_file_that_is_a_link_is_none_or_becomes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rival read what it led to, where an import path held that folder."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "v7.py").write_text(GOOD)
    (tmp_path / "best.py").symlink_to("src/v7.py")
    with pytest.raises(SubmissionError, match="a link to a file") as caught:
        load(tmp_path / "best.py")
    assert caught.value.hint == f"name the file: {tmp_path}/src/v7.py"
    monkeypatch.setattr(Path, "is_symlink", lambda _: False)
    with pytest.raises(SubmissionError, match="is a link"):
        load(tmp_path / "best.py")


def test_a_folder_that_was_shut_since_is_not_what_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit that ended as a fault of its harness counted against its GPU."""
    entrant = load(make(tmp_path))

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(entrants, "read", denied)
    with pytest.raises(SubmissionError, match="not the files that were asked for"):
        read_again(entrant)


def test_what_is_read_lies_where_it_was_looked_at(tmp_path: Path) -> None:
    """A link up and back again had all that lay beside a hand-in taken for it, and shut."""
    mine = make(tmp_path)
    with pytest.raises(SubmissionError, match="cannot be read"):
        source_files.read(mine, ["submission.py"], tmp_path)


def test_a_folder_that_goes_away_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renamed while it is looked at, it ended the run of everybody."""
    folder = make(tmp_path)

    def gone(*_: object, **__: object) -> str:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(Path, "resolve", gone)
    for read in (source_files.names_in, lambda path: source_files.read(path, ["submission.py"])):
        with pytest.raises(SubmissionError, match="cannot be read"):
            read(folder)


@pytest.mark.parametrize("name", ["submission.py", "steps/01_a.cu"])
def test_a_link_in_the_place_of_a_folder_that_is_read_gives_it_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Listed, exchanged, read: where it lies was looked up for each of these again."""
    away = make_ladder(tmp_path / "away", "01_a.cu").parent
    mine = make_ladder(tmp_path, "01_a.cu").parent
    really, plain = source_files.names_in, source_files.plain_files

    def exchanged(folder: Path, *ends: tuple[str, ...]) -> list[str]:
        found = (plain if ends else really)(folder, *ends)
        mine.rename(tmp_path / "was")
        mine.symlink_to(away)
        return found

    monkeypatch.setattr(entrants, "names_in", exchanged)
    monkeypatch.setattr(steps_module, "plain_files", exchanged)
    with pytest.raises(SubmissionError, match="links out of its folder"):
        load(mine if name == "submission.py" else mine / name)


def test_a_manifest_is_read_as_often_whatever_is_wrong_with_its_launch_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read and parsed once more for each wrong key, from whatever lay there by then."""
    wrong = "".join(f"  k{n}: 1\n" for n in range(9))
    folder = make(tmp_path, manifest=f"entry: x.cu\nlaunch:\n{wrong}")
    (folder / "x.cu").touch()
    really, read = yaml_model.StrictLoader, []

    def loader(text: str) -> yaml_model.StrictLoader:
        read.append(text)
        (folder / "manifest.yaml").write_text("now: another")
        return really(text)

    monkeypatch.setattr(yaml_model, "StrictLoader", loader)
    with pytest.raises(SubmissionError, match=r"manifest\.yaml:7: launch\.k3"):
        load(folder)
    assert len(read) == 1


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("manifest.yaml", "hunter: [hunter2]\n", "links out of its folder"),
        ("manifest.yaml", "problem: hunter2\n", "links out of its folder"),
        ("steps/launch.yaml", "hunter2: {}\n", "is a link"),
        ("steps/01_a.cu", "// hunter2\n", "links out of its folder"),
    ],
)
def test_nothing_is_read_through_a_link_out_of_a_folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    text: str,
    why: str,
) -> None:
    """Errors say what a wrong file holds."""
    monkeypatch.setenv("COLUMNS", "400")
    for module in (list_, baselines):
        monkeypatch.setattr(module, "base", lambda: tmp_path)
    (tmp_path / "secret").write_text(text)
    for kind in ("submissions", "baselines"):
        entry = make_ladder(tmp_path / kind, "01_a.cu").parent
        (entry / name).unlink()
        (entry / name).symlink_to(tmp_path / "secret")
        for word in ("all", str(entry / "steps"), str(tmp_path / kind)):
            with contextlib.suppress(SubmissionError):
                print(gather([word], tmp_path / kind, Kind.SUBMISSION, PROBLEM))
            with pytest.raises(SubmissionError) as told:
                find(tmp_path / kind, word, "none")
            print(told.value)
    for words in (["list"], ["list", "rungs"], ["list", "rungs", "--json"], ["baselines"]):
        assert story.main(main.parse_args(words)) == 0
    said = capsys.readouterr().out
    assert why in said
    assert "hunter2" not in said


def test_what_the_system_makes_up_is_empty(tmp_path: Path) -> None:
    """A read of /proc/kmsg waits, or gives nothing yet, and takes a line from syslog."""
    (tmp_path / "link").symlink_to("/proc/self/status")
    assert source_files.read_file(tmp_path / "link", 1 << 20) == b""


def test_a_folder_that_leads_to_a_path_that_is_not_utf_8(tmp_path: Path) -> None:
    """A campaign's line to the process of a unit could not hold it: all its units died."""
    away = tmp_path / os.fsdecode(b"x\xff")
    away.mkdir()
    (tmp_path / "evil").symlink_to(make(away))
    with pytest.raises(SubmissionError, match="leads to a path that is not UTF-8"):
        load(tmp_path / "evil")


def test_a_link_out_of_the_folder(tmp_path: Path) -> None:
    folder = make(tmp_path)
    (folder / "secret").symlink_to("/etc/hostname")
    with pytest.raises(SubmissionError, match="links out of its folder"):
        load(folder)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: os.mkfifo(folder / "pipe"), "pipe: is no regular file"),
        (lambda folder: (folder / "a\nb").touch(), r"a\\nb': a name that begins with none"),
        (lambda folder: (folder / "\udcff").touch(), r"udcff': a name that begins"),
        (lambda folder: [(folder / f"{i}").touch() for i in range(1001)], "more than 1000 files"),
        (lambda folder: [(folder / f".{i}").touch() for i in range(1001)], "more than 1000 files"),
        (lambda folder: (folder / "/".join("abcdefghijklm")).mkdir(parents=True), "deeper than 12"),
        (lambda folder: os.truncate(folder / "submission.py", 33 << 20), "34603008 bytes, at most"),
        (lambda folder: (folder / "sub").symlink_to("/usr"), "links out of its folder"),
    ],
)  # fmt: skip
def test_a_folder_that_is_not_read(
    tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    spoil(make(tmp_path))
    with pytest.raises(SubmissionError, match=message) as caught:
        load(tmp_path / "mine")
    assert caught.value.hint


@pytest.mark.parametrize(
    "name", ["$(id).cu", "`id`.cu", "a;b.cu", "a b.cu", 'a"b.h', "-o.cu", "sub$dir/a.cu", "(x).py"]
)
def test_a_name_that_a_shell_reads_is_refused(tmp_path: Path, name: str) -> None:
    folder = make(tmp_path)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("//")
    with pytest.raises(SubmissionError, match="letters, digits and _, or has") as caught:
        load(folder)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["kernel_é.cu", "a-b+c=d@e,f.cuh", "_x/__y__.h"])
def test_a_plain_name_is_read(tmp_path: Path, name: str) -> None:
    folder = make(tmp_path)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("//")
    assert name in dict(load(folder).files)


@pytest.mark.parametrize("name", [".DS_Store", ".pytest_cache/x", "sub/.ruff_cache/x", "k.pyc"])
def test_what_tools_leave_is_no_source(tmp_path: Path, name: str) -> None:
    """The wheel of an exported package would lack it, and `verify` call its bytes different."""
    path = (folder := make(tmp_path)) / name
    before = load(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("//")
    assert load(folder) == before


@pytest.mark.parametrize("name", ["manifest.yaml", "submission.py"])
def test_a_fifo_is_not_waited_for(tmp_path: Path, name: str) -> None:
    folder = make(tmp_path)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    for names in (["mine"], ["all"]):
        with pytest.raises(SubmissionError, match="is no regular file"):
            find_entrants(names, tmp_path, Kind.SUBMISSION, PROBLEM)


def test_an_entry_that_the_hash_does_not_cover(tmp_path: Path) -> None:
    folder = make(tmp_path, manifest="entry: build/submission.py\n")
    (folder / "build").mkdir()
    (folder / "build" / "submission.py").write_text(GOOD)
    with pytest.raises(SubmissionError, match=r"entry 'build/submission.py' is missing"):
        load(folder)


def test_who_cannot_be_read_fails_alone(tmp_path: Path) -> None:
    make(tmp_path, "sound")
    make(tmp_path, "deep", source=f"x = {'-' * 100_000}1\n")
    make(tmp_path, "cyclic", manifest="launch: &a {x: *a}\n")
    found, refused = gather(["all"], tmp_path, Kind.SUBMISSION, PROBLEM)
    assert [entrant.name for entrant in found] == ["sound"]
    assert sorted(error.message.split("/")[-2] for error in refused) == ["cyclic", "deep"]
    found, refused_by_name = gather(["sound,deep"], tmp_path, Kind.SUBMISSION, PROBLEM)
    assert [entrant.name for entrant in found] == ["sound"]
    assert [error.message.split("/")[-2] for error in refused_by_name] == ["deep"]
    named, left_out = gather([str(tmp_path)], tmp_path, Kind.SUBMISSION, PROBLEM)
    assert [entrant.name for entrant in named] == ["sound"]
    assert sorted(map(str, left_out)) == sorted(map(str, refused))
    shutil.rmtree(tmp_path / "sound")
    with pytest.raises(SubmissionError, match="cyclic"):
        gather(["all"], tmp_path, Kind.SUBMISSION, PROBLEM)


# ------------------------------------------------------------------ what is hashed is what runs


def staged(entrant: Entrant, target: Path) -> dict[str, str]:
    stage(entrant, target)
    assert source_files.holds(target, entrant.files)
    there = [path for path in target.rglob("*") if path.is_file()]
    return {path.relative_to(target).as_posix(): path.read_text() for path in there}


def test_workers_see_the_hashed_files_and_nothing_else(tmp_path: Path) -> None:
    folder = make(tmp_path / "in")
    for name in (
        "NOTES.md",
        "build/k.py",
        "results/r.py",
        "steps/s.py",
        "__pycache__/x.pyc",
        "k/a.cuh",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("code")
    entrant = load(folder)
    (folder / "submission.py").write_text("an edit of a moment later")
    there = staged(entrant, tmp_path / "out")
    assert there == {"submission.py": GOOD, "manifest.yaml": "name: mine\n", "k/a.cuh": "code"}


def test_a_copy_that_was_changed_is_made_anew(tmp_path: Path) -> None:
    entrant, target = load(make(tmp_path / "in")), tmp_path / "out"
    stage(entrant, target)
    inode = (target / "submission.py").stat().st_ino
    stage(entrant, target)
    assert (target / "submission.py").stat().st_ino == inode, "the same bytes are left alone"
    for spoil in (
        (target / "more.py").touch,
        (target / "submission.py").unlink,
        lambda: [
            (target / "submission.py").unlink(),
            (target / "submission.py").symlink_to("/etc/hostname"),
        ],
        (target / "empty").mkdir,
        lambda: [shutil.rmtree(target), target.symlink_to(tmp_path / "in" / "mine")],
    ):  # fmt: skip
        spoil()
        assert not source_files.holds(target, entrant.files)
        assert staged(entrant, target).keys() == {"submission.py", "manifest.yaml"}


def test_a_bare_file_is_alone_whatever_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to("/usr/bin/env")
    with open(tmp_path / "weights.bin", "wb") as file:
        file.truncate(40 << 20)
    (tmp_path / "mine.py").write_text(GOOD)
    entrant = load(tmp_path / "mine.py")
    assert staged(entrant, tmp_path / "out") == {"mine.py": GOOD}
    told = Entrant.model_validate_json(entrant.model_dump_json())
    assert told.files == ()
    assert read_again(told) == entrant


def test_a_ladder_that_is_a_link_is_the_one_it_leads_to(tmp_path: Path) -> None:
    """A rival's rungs bore its author's name, and the rival's own were left out without a word."""
    steps = make_ladder(tmp_path, "01_a.cu")  # of cuda_x, by me
    evil = make(tmp_path, "evil", manifest="author: evil\n")
    (evil / "steps").symlink_to(steps)
    with pytest.raises(SubmissionError, match="evil/steps: is a link"):
        steps_module.rungs_of(evil / "steps")
    assert load(evil / "steps" / "01_a.cu").manifest.author == "me"


def test_a_rung_brings_what_its_hash_covers(tmp_path: Path) -> None:
    steps = make_ladder(tmp_path, "01_a.cu", "02_b.cu", "03_c.cu")
    (steps / "01_a.cu").write_text('#include "02_b.cu"\n')
    (steps / "x.cuh").write_text("//")
    entrant = load(steps / "01_a.cu")
    assert staged(entrant, tmp_path / "out").keys() == {"01_a.cu", "02_b.cu", "x.cuh"}
    assert read_again(entrant.model_copy(update={"files": ()})) == entrant


@pytest.mark.parametrize("entry", ["src/k.cu", "./k.cu", "k.cu/"])
def test_a_plain_cu_is_read_again_wherever_it_lies(tmp_path: Path, entry: str) -> None:
    folder = make(tmp_path, manifest=f"entry: {entry}\nlaunch:{SECTION}")
    (folder / Path(entry)).parent.mkdir(exist_ok=True)
    (folder / Path(entry)).write_text("//")
    entrant = load(folder)
    assert entrant.manifest.entry == str(Path(entry))
    assert read_again(entrant.model_copy(update={"files": ()})) == entrant


def test_what_a_rung_may_not_say_an_entry_with_a_manifest_may(tmp_path: Path) -> None:
    """A campaign's child could not read it, and its place got nothing more."""
    folder = make(tmp_path, manifest=f"entry: k.cu\nlaunch:{SECTION}")
    (folder / "k.cu").write_text("//" + 'a.cu" ' * 10_002)
    entrant = load(folder)
    assert read_again(entrant.model_copy(update={"files": ()})) == entrant


def test_other_files_than_those_asked_for_are_told(tmp_path: Path) -> None:
    entrant = load(make(tmp_path))
    (tmp_path / "mine" / "submission.py").write_text(GOOD + "# edited\n")
    with pytest.raises(SubmissionError, match="not the files that were asked for"):
        read_again(entrant)
    with pytest.raises(SubmissionError, match="not read in this process"):
        stage(entrant.model_copy(update={"files": ()}), tmp_path / "out")


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
    make(tmp_path, "triton_templat\nnext: x")  # nobody can be asked to type that
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


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("candidates", ["candidates"]),
        ("./candidates", ["a", "b"]),
        ("candidates/", ["a", "b"]),
        ("candidates/a", ["a"]),
        ("entries/candidates", ["candidates"]),
    ],
)
def test_a_word_with_a_slash_is_a_path_before_it_is_a_name(
    word: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever merged an entry called as somebody's folder ran in its place."""
    make(tmp_path / "entries", "candidates", manifest="owners: [stranger]\n")
    (tmp_path / "entries" / "candidates" / "a.py").write_text(GOOD)
    for name in "ab":
        make(tmp_path / "candidates", name)
    monkeypatch.chdir(tmp_path)
    assert [entrant.name for entrant in find(tmp_path / "entries", word)] == found


@pytest.mark.parametrize("word", ["aaa", "zzz"])
def test_nobody_in_a_folder_of_many_says_what_the_others_are_measured_on(
    tmp_path: Path, word: str
) -> None:
    """Who came first, then who had more votes by ever finer signs, left all others out."""
    other = "attention_backward"
    many = tmp_path / "many"
    for name, problem in (("good", ""), (word, other), (f"{word}2", other)):
        (many / name).mkdir(parents=True)
        (many / name / "submission.py").write_text(
            GOOD.replace("attention_forward", problem or "attention_forward")
        )
        if problem:
            said = f"name: {name}\nproblem: {problem}\n"
            (many / name / "manifest.yaml").write_text(said)
    problem = entrants.problem_of([f"{many}/"], tmp_path / "none")
    assert problem is PROBLEM
    found, refused = gather([f"{many}/"], tmp_path / "none", Kind.SUBMISSION, problem)
    assert [each.name for each in found] == ["good"]
    assert len(refused) == 2
    for why in refused:
        assert why.message.endswith(f"computes {other}, the suite measures {problem.name}")
        assert "--suite fa3_bwd" in why.hint


@pytest.mark.parametrize(
    ("words", "told"),
    [("fwd", "forward"), ("bwd", "backward"), ("bwd,bwd.py", "backward"), ("bwd.py,fwd,bwd", "forward"),
     ("many", "forward"), ("many,bwd", "forward"), ("bwd,gone", "forward"), ("broken,bwd", "forward")],
)  # fmt: skip
def test_words_say_what_is_measured_where_each_is_an_entry_and_all_agree(
    tmp_path: Path, words: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that came first, or most of them, decided for the folders of all others."""
    backward = GOOD.replace("attention_forward", "attention_backward")
    for folder in ("fwd", "bwd", "broken", "many/bwd"):
        (tmp_path / folder).mkdir(parents=True)
        problem = "attention_backward" if folder.endswith("bwd") else "attention_forward"
        manifest = "[" if folder == "broken" else f"name: {folder[-3:]}\nproblem: {problem}\n"
        (tmp_path / folder / "manifest.yaml").write_text(manifest)
    for file in ("bwd.py", "many/a.py", "many/b.py"):
        (tmp_path / file).write_text(backward)
    monkeypatch.chdir(tmp_path)
    paths = ",".join(f"./{word}" for word in words.split(","))
    assert entrants.problem_of([paths], tmp_path / "none").name == f"attention_{told}"


def test_who_has_neither_manifest_nor_a_name_is_told_once(tmp_path: Path) -> None:
    for name in ("good", "bad name", "x.py"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "submission.py").write_text(GOOD)
    found, refused = gather([str(tmp_path)], tmp_path / "none", Kind.SUBMISSION, None)
    assert [each.name for each in found] == ["good"]
    told = " ".join(str(each.message) for each in refused)
    assert len(refused) == told.count("bad name") + told.count("x.py'") == 2, told


def test_a_ladder_is_all_its_rungs(tmp_path: Path) -> None:
    make_ladder(tmp_path, "02_b.cu", "01_a.cu")
    found = find(tmp_path, "cuda_x/steps", "cuda_x/steps/02_b.cu")
    assert [entrant.name for entrant in found] == ["cuda_x/steps/01_a", "cuda_x/steps/02_b"]
    assert ladders(tmp_path) == [tmp_path / "cuda_x" / "steps"]


def test_the_entry_of_a_manifest_is_no_entry_by_itself(tmp_path: Path) -> None:
    """Whoever laid a manifest beside another's file had its kernel in his row."""
    folder = make(tmp_path, manifest=f"entry: kernel.cu\nlaunch:{SECTION}")
    (folder / "kernel.cu").write_text("//")
    make(tmp_path, name="yours")
    for file in ("mine/kernel.cu", "yours/submission.py"):
        with pytest.raises(SubmissionError, match="the entry of its folder") as caught:
            find(tmp_path, file)
        assert find(tmp_path, caught.value.hint.removeprefix("name the folder: "))


def test_a_manifest_that_comes_while_entries_are_read_makes_them_no_entry_of_its_author(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = tmp_path / "inbox"
    many.mkdir()
    for name in ("hon", "mal"):
        (many / f"{name}.py").write_text(GOOD)
    asked = entrants._asked_for

    def and_then_it_comes(*args: object) -> list[Path]:
        found = asked(*args)
        (many / "manifest.yaml").write_text("name: inbox\nentry: mal.py\n")
        return found

    monkeypatch.setattr(entrants, "_asked_for", and_then_it_comes)
    found, refused = gather([f"{many}/"], tmp_path / "none", Kind.SUBMISSION, PROBLEM)
    assert [each.name for each in found] == ["hon"]
    assert "the entry of its folder" in refused[0].message


@pytest.mark.parametrize("claim", ["gqa: true", "seqlens: any", "packed: true"])
def test_a_plain_cu_cannot_claim_what_its_launch_does_not_know(tmp_path: Path, claim: str) -> None:
    text = f"entry: kernel.cu\nclaims: {{{claim}}}\nlaunch:{SECTION}"
    folder = make(tmp_path, manifest=text)
    (folder / "kernel.cu").write_text("//")
    with pytest.raises(SubmissionError, match=r"(?s)cannot claim gqa.*write a submission.py"):
        load(folder)


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


def test_the_headers_beside_a_rung_have_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = make_ladder(tmp_path, "01_a.cu")
    for name in ("a.h", "b.h", "c.h"):
        with (steps / name).open("wb") as file:
            file.truncate(20 << 20)
    read = []

    def told(path: Path, *args: object, **named: object) -> bytes:
        read.append(path.name)
        return read_file(path, *args, **named)

    read_file = source_files.read_file
    for module in (source_files, steps_module):
        monkeypatch.setattr(module, "read_file", told)
    with pytest.raises(SubmissionError, match="more than 32 MiB of files"):
        load(steps / "01_a.cu")
    assert "c.h" not in read


@pytest.mark.parametrize(
    ("described", "message"),
    [
        (None, r"launch.yaml: does not say how the kernels of 01_a.cu are.*\n.*write '01_a.cu:'"),
        ("01_aa.cu: {}\n", r"kernels of 01_a.cu are launched\n.*Did you mean '01_aa.cu'"),
        ("02_b.cu: {}\n", r"kernels of 01_a.cu are launched\n.*write '01_a.cu:'"),
        (f"{'z' * 300}: {{}}\n", r"kernels of 01_a.cu are launched\n.*write '01_a.cu:'"),
        ("01_a.cu:\n", "launch.yaml: '01_a.cu' holds no launch section"),
        ("- 1\n", r"launch.yaml:1: expected 'FILE.cu:'"),
        ("01_a.cu: [\n", r"launch.yaml:2: not YAML"),
        ("01_a.cu: {kernels: []}\n", r"launch.yaml: 01_a.cu: launch.kernels: "),
        (
            f"01_a.cu:{SECTION.replace('headdims', 'dtypes: [fp32], headdims')}",
            r"launch.yaml: 01_a.cu: its kernels serve none of bf16, fp16",
        ),
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


@pytest.mark.parametrize("above", ["needs: {compute_capability: '9.0'}\n", "unknown: 1\n", "[\n"])
def test_what_the_rungs_of_a_ladder_share_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: str
) -> None:
    """Each rung parsed both files again: 45 KiB of text held a run for three minutes."""
    steps = make_ladder(tmp_path, *(f"{n:02}.cu" for n in range(20)))
    (tmp_path / "cuda_x" / "manifest.yaml").write_text(f"name: cuda_x\n{above}")
    parsed = []
    loader = yaml_model.StrictLoader
    monkeypatch.setattr(yaml_model, "StrictLoader", lambda text: parsed.append(1) or loader(text))
    if above.startswith("needs"):
        assert len(find(tmp_path, str(steps))) == 20
    else:
        with pytest.raises(SubmissionError, match=r"manifest\.yaml:[23]") as caught:
            find(tmp_path, str(steps))
        assert not caught.value.others
    assert len(parsed) == 2


@pytest.mark.parametrize("rungs", [101, 0])
def test_a_ladder_has_an_end_and_a_beginning(tmp_path: Path, rungs: int) -> None:
    """Each rung lists and reads what lies beside it; of none nobody ran, and all was well."""
    names = (f"{n:03}.cu" for n in range(rungs))
    make_ladder(tmp_path, *names, described=None if rungs else "{}")
    with pytest.raises(SubmissionError, match=f"steps: {rungs} rungs, from 1 to 100 are a ladder"):
        find(tmp_path, "cuda_x/steps")


@pytest.mark.parametrize("unit", [b'"', b'.cu"', b"/", b"a.cu"])
def test_what_its_headers_include_is_found_in_no_time(tmp_path: Path, unit: bytes) -> None:
    """Names of 32 MiB took seconds, for each rung again: 100 of them minutes."""
    steps = make_ladder(tmp_path, "01_a.cu", "02_b.cu", "03_c.cu")
    (steps / "z.h").write_bytes(unit * ((24 << 20) // len(unit)) + b'\n"up/03_c.cu"')
    begun = time.process_time()
    if unit == b'.cu"':
        with pytest.raises(SubmissionError, match=r"01_a\.cu: .* name \.cu files over 10000 times"):
            steps_module.names_of(steps / "01_a.cu")
    else:
        assert steps_module.names_of(steps / "01_a.cu") == ["01_a.cu", "z.h", "03_c.cu"]
    assert time.process_time() - begun < 1


def test_a_ladder_that_is_a_link_is_none(tmp_path: Path) -> None:
    """`list rungs` quoted a file that lay elsewhere."""
    (tmp_path / "away").mkdir()
    (tmp_path / "away" / "launch.yaml").write_text("secret: 1")
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "steps").symlink_to(tmp_path / "away")
    assert ladders(tmp_path) == []


def test_a_bad_ladder_answers_for_nobody_else(tmp_path: Path) -> None:
    make(tmp_path, "good")
    make_ladder(tmp_path, "01_a.cu", described=f"01_a.cu:{SECTION}09_z.cu:{SECTION}")
    with pytest.raises(SubmissionError, match="no entry 'goood'") as caught:
        find(tmp_path, "goood")
    assert "Did you mean 'good'" in caught.value.hint
    with pytest.raises(SubmissionError, match="no entry"):
        find(tmp_path, f"./{'x' * 300}")


@pytest.mark.parametrize("mode", [0, 0o111, 0o444])
def test_a_shut_folder_stops_nobody_else(
    tmp_path: Path, shut: Callable[[Path], None], mode: int
) -> None:
    make(tmp_path, "good")
    steps = make_ladder(tmp_path, "01_a.cu")
    (steps.parent / "x.py").symlink_to("steps/01_a.cu")
    (make(tmp_path, "whole") / "sub").mkdir()
    (tmp_path / "whole" / "sub" / "x.h").touch()
    for folder in (steps, tmp_path / "whole" / "sub"):
        shut(folder)
        folder.chmod(mode)
    found, refused = gather(["all"], tmp_path, Kind.SUBMISSION, PROBLEM)
    assert sorted(each.name for each in found) == ["cuda_x", "good"]
    assert len(refused) == 1
    with pytest.raises(SubmissionError, match="no entry 'goood'") as caught:
        find(tmp_path, "goood")
    assert "Did you mean 'good'" in caught.value.hint
    shut(steps.parent)
    for name in ("cuda_x", "cuda_x/steps", "cuda_x/steps/01_a.cu", str(steps)):
        with pytest.raises(SubmissionError):
            find(tmp_path, name)


def test_a_link_to_a_name_too_long_stops_nobody_else(tmp_path: Path) -> None:
    for name in ("zz", "zz.py", "zz.cu", "zd/manifest.yaml", "ze/submission.py", "zf/steps"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to("a" * 300)
    make(tmp_path, "good")
    found, _ = gather(["all"], tmp_path, Kind.SUBMISSION, PROBLEM)
    assert [each.name for each in found] == ["good"]
    found, _ = gather([str(tmp_path)], tmp_path, Kind.SUBMISSION, PROBLEM)
    assert [each.name for each in found] == ["good"]
    with pytest.raises(SubmissionError, match="no entry 'goood'"):
        find(tmp_path, "goood")
    for name in ("zz", "zz.py", "zz.cu", "zd", "ze"):
        with pytest.raises(SubmissionError):
            find(tmp_path, str(tmp_path / name))


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


@pytest.mark.parametrize("package", ["", " ", "no-such-package", "a/../b"])
def test_what_is_no_package_has_no_version(package: str) -> None:
    assert version_of(package) == ""


def test_the_cudnn_is_the_one_beside_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch looks beside itself, whatever wheel comes first on sys.path."""
    for folder, name, version in (
        ("site", "torch", "2.11.0"),
        ("site", "nvidia-cudnn-cu13", "9.19.0.56"),
        ("newer", "nvidia-cudnn-cu13", "9.28.1.4"),
    ):
        info = tmp_path / folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    assert version_of("nvidia-cudnn-cu13") == "9.28.1.4"
    assert inspect_machine(None).cudnn == "9.19.0.56"


def test_what_an_uninstalled_package_left_behind_has_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every run ended in a traceback."""
    for name in ("torch-2.11.0", "nvidia_cudnn_cu13-9.28.1.4"):
        (tmp_path / f"{name}.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0\n"
    (tmp_path / "torch-2.11.0.dist-info" / "METADATA").write_text(metadata)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert version_of("nvidia-cudnn-cu13") == inspect_machine(None).cudnn == ""


def test_of_a_version_a_record_takes_what_it_has_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, at in (("torch", "torch-2"), ("nvidia-cudnn-cu13", "nvidia_cudnn_cu13-9")):
        (tmp_path / f"{at}.dist-info").mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {'9' * 600}\n"
        (tmp_path / f"{at}.dist-info" / "METADATA").write_text(metadata)
    monkeypatch.syspath_prepend(str(tmp_path))
    machine = inspect_machine(None)
    assert machine.cudnn == machine.torch == "9" * 500


def test_all_means_the_first_problem_whoever_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "manifest.yaml").write_text("name: all\nproblem: attention_backward\n")
    assert entrants.problem_of(["all"], tmp_path).name == "attention_forward"


def test_nobody_can_write_sources_until_their_folder_is_a_rivals() -> None:
    """`a/b` and `a-b` differ in the key alone, and of 48 bits a GPU finds a second key in a night."""
    mine, key = private_folder("a/b", "0" * 64, "h200")
    theirs, _ = private_folder("a-b", "0" * 64, "h200")
    told = mine.removeprefix("a-b-")
    assert told != theirs.removeprefix("a-b-")
    assert key.startswith(told)
    assert 4 * len(told) >= 128


def test_a_link_in_a_folder_of_many_is_nobody_s_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had the row of what it led to, or of whose file it was; `mine` becomes one meanwhile."""
    root, many, mine = tmp_path / "submissions", tmp_path / "many", tmp_path / "mine"
    for folder in (many / "hon", mine):
        folder.mkdir(parents=True)
        (folder / f"{folder.name}.py").write_text(GOOD)
        (folder / "manifest.yaml").write_text(f"name: {folder.name}\nentry: {folder.name}.py\n")
    (many / "hon.py").symlink_to("hon/hon.py")
    (many / "evil").symlink_to(mine)
    (many / "mine").symlink_to(mine)
    looks = Path.is_symlink
    monkeypatch.setattr(Path, "is_symlink", lambda path: looks(path) and path.name != "mine")
    found, refused = entrants.gather([f"{many}/", str(mine)], root, Kind.SUBMISSION, PROBLEM)
    assert [(each.name, each.folder) for each in found] == [("hon", many / "hon"), ("mine", mine)]
    assert len(refused) == 3
    assert all("a link in a folder of many" in each.message for each in refused)
    assert find(root, str(many / "mine"))[0].folder == mine, "named by itself"


@pytest.mark.parametrize("word", ["inbox", "./submissions/inbox/"])
def test_a_folder_takes_no_row_of_a_file_called_so(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below `submissions/` the folder alone was looked at: its author ran, the file's did not."""
    root = tmp_path / "submissions"
    (root / "inbox" / "hon").mkdir(parents=True)
    for file in ("hon.py", "hon/submission.py", "other.py"):
        (root / "inbox" / file).write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    found, refused = gather([word], root, Kind.SUBMISSION, PROBLEM)
    assert [each.name for each in found] == ["inbox/other"]
    assert len(refused) == 2
    assert all("called 'inbox/hon', which is taken" in each.message for each in refused)
    assert find(root, "inbox/hon")[0].entry_path == root / "inbox" / "hon" / "submission.py"
    for file in ("inbox/hon.py", "./submissions/inbox/hon.py"):
        with pytest.raises(
            SubmissionError, match=r"hon\.py: an entry called 'inbox/hon', which is"
        ):
            find(root, file)
    (tmp_path / "mine.py").write_text(GOOD)
    (tmp_path / "submissions" / "mine.py.py").write_text(GOOD)
    make(root, "fast")
    with pytest.raises(SubmissionError, match=r"no entry 'fast\.py'"):
        find(root, "fast.py")
    assert find(root, "mine.py")[0].entry_path == tmp_path / "mine.py"
    (root / "inbox" / "hon").rename(root / "mine")
    with pytest.raises(SubmissionError, match=r"^mine\.py: an entry called 'mine', which is taken"):
        find(root, "mine.py")


def test_a_path_is_a_path_first_and_a_name_is_one_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever lay there under the other reading ran in the place of what was typed."""
    root, here = tmp_path / "submissions", tmp_path / "here"
    here.mkdir()
    (here / "mine.py").write_text(GOOD)
    make(root, "mine.py")
    make(root, "fast")
    (root / "other.py").write_text(GOOD)
    make(here, "fast")
    (here / "other.py").write_text(GOOD)
    monkeypatch.chdir(here)
    assert find(root, "mine.py")[0].entry_path == here / "mine.py"
    assert find(root, "fast")[0].folder == root / "fast"
    with pytest.raises(SubmissionError, match="called 'other', which is taken"):
        find(root, "other.py")
    assert entrants.places(["other.py", "./fast"], root) == [Path("other.py"), Path("fast")]
    (here / "mine.py").unlink()
    with pytest.raises(SubmissionError, match="a folder called like a file"):
        find(root, "mine.py")


def test_all_takes_the_row_of_no_file_beside_a_folder(tmp_path: Path) -> None:
    """Its time stood under the name of the file that had been measured before."""
    for name in ("hon", "other"):
        make(tmp_path, name)
    (tmp_path / "hon.py").write_text(GOOD)
    found, refused = gather(["all"], tmp_path, Kind.SUBMISSION, PROBLEM)
    assert [each.name for each in found] == ["other"]
    assert "called 'hon', which is taken" in refused[0].message


@pytest.mark.parametrize("broken", ["x/submission.py", "launch.yaml", "manifest.yaml", ""])
def test_one_author_s_folder_ends_nobody_else_s_run(tmp_path: Path, broken: str) -> None:
    """In a folder each, one author's broken hand-in, or none, ended the run for all."""
    root, his, hers = tmp_path / "submissions", tmp_path / "his", tmp_path / "hers"
    for folder in (his / "x", hers / "y"):
        folder.mkdir(parents=True)
        (folder / "submission.py").write_text(GOOD)
    (his / broken).write_text("gone.cu: {}: (") if broken else shutil.rmtree(his / "x")
    found, refused = entrants.gather([f"{his}/,{hers}/"], root, Kind.SUBMISSION, PROBLEM)
    assert [each.name for each in found] == ["y"]
    assert len(refused) == 1
    with pytest.raises(SubmissionError, match=re.escape(str(his))):
        find(root, f"{his}/")


def test_a_line_of_many_imports_costs_no_more_than_its_length() -> None:
    """One file of 512 KiB held whoever stood beside it for an hour, before anybody was asked."""
    lines = (b"from x " + word * 20_000 for word in (b"import ", b"ximport ", b"from "))
    body = b"# custom_attention_forward\n".join(lines)
    began = time.process_time()
    assert entrants._defines(body) == []
    assert time.process_time() - began < 1


def test_long_names_beside_long_names_are_not_compared() -> None:
    """Each pair of 200 letters took 44 ms: one folder of 1,000 such files held `list` for 40 s."""
    known = [f"{'aab' * 63}{n}" for n in range(20)]
    began = time.process_time()
    assert did_you_mean("aac" * 63, known) == ""
    assert time.process_time() - began < 0.1
    assert did_you_mean("smok", [*known, "smoke"]) == "Did you mean 'smoke'?"
    assert "known: q, k" in _launch_refusal("aac" * 63, [name[:199] for name in known])


def _launch_refusal(arg: str, maps: list[str]) -> str:
    kernel = {"name": "f", "headdims": [64], "grid": [1], "block": [1], "args": [arg]}
    made = {name: {"tensor": "q", "box": [1, 1]} for name in maps[:16]}
    with pytest.raises(ValueError, match="unknown argument") as caught:
        parse_launch({"kernels": [kernel], "tensor_maps": made}, "m")
    return str(caught.value)
