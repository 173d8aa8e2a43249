"""The house: budgets, picture, defences counted; who may import whom.

Imports run downhill, and the engine's side never imports torch: the contracts of pyproject.toml,
and tighter laws for some.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cli.selftest.corpus import load_corpus
from harness.cli.selftest.stand_ins import STAND_INS
from tests.conftest import slow_lines
from tests.house import count, defences, picture

COUNTED = count.count()


@pytest.mark.parametrize("name", count.limits())
def test_a_limit_is_kept(name: str) -> None:
    told = count.verdict(name, *COUNTED[name])
    assert not told, told


def test_every_limit_is_counted_and_aims_lower() -> None:
    assert set(COUNTED) == set(count.limits())
    assert all(held.target <= held.limit for held in count.limits().values())


def test_what_has_owners_of_its_own_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    for name, manifest in (("ours", "name: ours\n"), ("theirs", "name: x\nowners: [octo]\n")):
        (tmp_path / "submissions" / name).mkdir(parents=True)
        (tmp_path / "submissions" / name / "manifest.yaml").write_text(manifest)
    monkeypatch.setattr(count, "ROOT", tmp_path)
    assert count.files.__wrapped__() == ("submissions/ours/manifest.yaml",)
    assert count.ours(tmp_path) == [tmp_path / "submissions" / "ours"]


def test_tests_ask_count_whose_a_submission_is() -> None:
    """A stranger's manifest without `language`, read where tests are collected, ended CI for all."""
    asked = re.compile(r"""["']submissions/[^"']*\*|SUBMISSIONS\.(?:i?r?glob|iterdir)""")
    own = {"tests/house/count.py"}
    for path in (count.ROOT / "tests").rglob("*.py"):
        name = path.relative_to(count.ROOT).as_posix()
        assert name in own or not asked.search(path.read_text(encoding="utf-8")), name


def test_beyond_a_limit_it_says_where_and_what_to_do() -> None:
    limit = count.limits()["harness_lines"].limit
    assert count.verdict("harness_lines", limit, "here") == ""
    told = count.verdict("harness_lines", limit + 7, "here")
    assert f"{limit + 7}, at most {limit} (here)" in told
    assert "next: take 7 away" in told


def drawn(text: str) -> dict[str, frozenset[str]]:
    """`a>bc b> c>`: room > what it imports."""
    return {room[0]: frozenset(room[2:]) for room in text.split()}


@pytest.mark.parametrize(
    ("house", "floors", "circles"),
    [
        ("a> b>", [["a", "b"]], []),
        ("a>bc b>c c>", [["c"], ["b"], ["a"]], []),
        ("a>b b>a c>a", [["a", "b"], ["c"]], ["ab"]),
        ("a>b b>cd c>a d>", [["d"], ["a", "b", "c"]], ["abc"]),
        ("a>b b>a c>d d>c e>ac", [["a", "b", "c", "d"], ["e"]], ["ab", "cd"]),
    ],
)
def test_floors_and_circles(house: str, floors: list[list[str]], circles: list[str]) -> None:
    assert count.floors(drawn(house)) == floors
    assert count.circles(drawn(house)) == [frozenset(circle) for circle in circles]


def test_a_detour_replaces_its_shortcut() -> None:
    assert count.without_detours(drawn("a>bcd b>c c>d d>")) == drawn("a>b b>c c>d d>")


WALKED = {
    "a": """
        from harness import b as other
        from harness.c import Kept, shown
        def start(request: "Mine", view):
            view.note(shown("nothing of it"))
            part = request.part
            told = f"{request.name}"
            shown(told)
            other.first(view, of=[part])
            request.more()
            kept = Kept(request)
            kept.ask()
        class Mine:
            def more(self):
                for each in sorted(self.parts):
                    other.first(each, self)
        """,
    "b": """
        from harness import c
        def first(one, of): c.shown(of)
        """,
    "c": """
        def shown(text): ...
        class Kept:
            def ask(self): shown(self)
        """,
}


def test_a_walk_goes_where_a_part_is_handed_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "harness").mkdir()
    for name, text in WALKED.items():
        (tmp_path / "harness" / f"{name}.py").write_text(textwrap.dedent(text))
    monkeypatch.setattr(count, "ROOT", tmp_path)
    count.module.cache_clear()
    walked = count.walk(("harness.a", "start", frozenset({"request"})))
    count.module.cache_clear()
    assert "".join(name[-1] for name in walked) == "abcabc"


ROOMS = "abcdefg"


@given(st.sets(st.tuples(st.sampled_from(ROOMS), st.sampled_from(ROOMS))))
def test_every_import_leads_down_unless_it_is_in_a_circle(pairs: set[tuple[str, str]]) -> None:
    arrows = {a: frozenset(y for x, y in pairs if x == a and y != a) for a in ROOMS}
    height = {room: i for i, floor in enumerate(count.floors(arrows)) for room in floor}
    ring = {room: circle for circle in count.circles(arrows) for room in circle}
    assert set(height) == set(ROOMS)
    for room, imported in arrows.items():
        for other in imported:
            assert height[other] < height[room] or other in ring.get(room, ())


def test_the_picture_is_what_the_imports_give() -> None:
    kept = picture.PICTURE.read_text(encoding="utf-8")
    assert kept == picture.draw(), "next: python -m tests.house.picture"


def test_a_picture_that_is_not_current_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(picture, "PICTURE", tmp_path / "harness.svg")
    monkeypatch.setattr(count, "ROOT", tmp_path)
    assert picture.main(["--check"]) == 1
    assert "next: python -m tests.house.picture" in capsys.readouterr().out
    assert picture.main([]) == 0
    assert picture.main(["--check"]) == 0


def test_every_room_has_its_place_and_no_two_share_one() -> None:
    arrows = count.rooms()
    places, _ = picture._places(arrows, count.floors(arrows))
    assert set(places) == set(arrows)
    assert len({(box.x, box.y) for box in places.values()}) == len(places)
    assert all(0 <= box.x <= picture.WIDTH - box.width for box in places.values())


@pytest.mark.parametrize("line", slow_lines())
def test_what_is_called_slow_is_there(line: str) -> None:
    file, _, name = line.partition("::")
    text = (count.ROOT / file).read_text(encoding="utf-8")
    function = name.partition("[")[0].strip("*")
    assert f"def {function}" in text if function.startswith("test_") else function in text


CHEATERS = [specimen for specimen in load_corpus() if not specimen.honest]
NAMED = [specimen.expect.defence for specimen in CHEATERS]
PAGE = defences.PAGE.read_text(encoding="utf-8")
THREATS = defences.THREATS.read_text(encoding="utf-8")
DRAWN = "| `contract` | max | 3 |\n| `finite` | NaN | 0 |\nbeside `b7_*` and `b9_fp8`\n"


def test_every_defence_has_its_row() -> None:
    new = {*NAMED, *STAND_INS} - set(defences.rows(PAGE))
    assert not new, (
        f"next: give {', '.join(sorted(new))} a row in tests/corpus/README.md, with 0 behind it"
    )


def test_every_specimen_is_counted_under_its_defence() -> None:
    assert defences.counted(PAGE, NAMED) == PAGE, "next: python -m tests.house.defences"


def test_a_defence_that_stops_nobody_has_no_row() -> None:
    assert [name for name, number in defences.rows(PAGE).items() if not number] == []


def test_every_specimen_stands_beside_an_asset() -> None:
    lonely, empty = defences.strays(THREATS, [specimen.name for specimen in CHEATERS])
    assert not lonely, f"next: name {', '.join(lonely)} beside an asset in docs/threats.md"
    assert not empty, (
        f"next: take {', '.join(empty)} out of docs/threats.md; no specimen is called so"
    )


def test_every_control_is_told_of() -> None:
    honest = {specimen.name for specimen in load_corpus() if specimen.honest}
    missing = sorted(name for name in honest if f"`{name}`" not in PAGE)
    assert not missing, f"next: name {', '.join(missing)} under 'Must not be flagged'"


@pytest.mark.parametrize(
    ("named", "numbers"),
    [
        (["contract"], {"contract": 1, "finite": 0}),
        (["finite"] * 12, {"contract": 0, "finite": 12}),
        (["contract", "unheard_of"], {"contract": 1, "finite": 0}),
    ],
)
def test_counting(named: list[str], numbers: dict[str, int]) -> None:
    written = defences.counted(DRAWN, named)
    assert defences.rows(written) == numbers
    assert written.replace("12", "0").replace("1", "0") == DRAWN.replace("3", "0")


def test_who_is_in_no_group_and_which_group_is_empty() -> None:
    assert defences.strays(DRAWN, ["b7_nan", "b7_zeros", "b9_fp8"]) == ([], [])
    assert defences.strays(DRAWN, ["b7_nan", "a1_new"]) == (["a1_new"], ["b9_fp8"])


RAN = defences.ran()
LOG = """
    b7_nan: NONFINITE (NaN)
ok  b7_nan: stopped NONFINITE (max diff: 3.25, must be)
!!  b9_fp8: accepted PASSED
ok  lazy_init: passed
"""


def test_each_line_of_the_record_is_of_a_specimen_that_is_there_in_their_order() -> None:
    assert list(RAN) == [specimen.name for specimen in load_corpus() if specimen.name in RAN]
    assert {tuple(line) for line in RAN.values()} == {
        ("name", "verdict", "by", "date", "commit", "gpu")
    }


@pytest.mark.parametrize("page", ["README.md", "docs/threats.md"])
def test_pages_tell_what_the_record_holds(page: str) -> None:
    said = defences.TOLD.findall((count.ROOT / page).read_text(encoding="utf-8"))
    assert set(said) == {defences.told(RAN)}, "next: python -m tests.house.defences"


def test_what_a_log_says_is_taken_line_by_line() -> None:
    found = defences.taken(LOG, "c0ffee", "2026-11-22", "H100")
    assert {name: (line["verdict"], line["by"]) for name, line in found.items()} == {
        "b7_nan": ("stopped", "NONFINITE (max diff: 3.25, must be)"),
        "b9_fp8": ("accepted", "PASSED"),
        "lazy_init": ("passed", ""),
    }
    runs = {(line["commit"], line["date"], line["gpu"]) for line in found.values()}
    assert runs == {("c0ffee", "2026-11-22", "H100")}


def test_only_who_ended_as_foreseen_is_told_of() -> None:
    none = defences.told({name: {"verdict": "accepted"} for name in RAN})
    all_ = defences.told({specimen.name: {"verdict": "stopped"} for specimen in load_corpus()})
    exploits, controls = len(CHEATERS), all_.split()[-2]
    assert none == f"0 of {exploits} exploits and 0 of {controls} controls"
    assert all_ == f"{exploits} of {exploits} exploits and {controls} of {controls} controls"


# --------------------------------------------------------------------------- imports


HARNESS = count.ROOT / "harness"

#: Who stays small: file → all it may import of harness/. The hot path and what is audited by reading.
LAWS = {
    "schema.common": set(),
    "schema.mismatch": {"schema.common"},
    "schema.suite": {"schema.common"},
    "schema.entrant": {"schema.common", "schema.suite"},
    "errors": set(),
    "process.text": set(),
    "process.cuda.arena_layout": set(),
    "process.wire": {"errors"},
    "process.cuda.driver": set(),
    "process.cuda.shared_memory": {"process.cuda.driver", "process.cuda.arena_layout"},
    "process.sandbox.cgroup": set(),
    "process.process_tree": {"errors"},
    "process.sandbox.landlock": {"process.process_tree"},
    "process.sandbox.private_root": {"process.process_tree"},
    "process.sandbox.folders": set(),
    "process.sandbox.seccomp": {"process.process_tree", "process.sandbox.system_calls"},
    "process.sandbox.system_calls": set(),
    "process.sandbox.readable": set(),
    "process.sandbox.usage": {"process.sandbox.folders"},
    "measure.stats": set(),
    "measure.stopping": {"measure.stats"},
    "measure.two_clocks": {"schema", "measure.stats"},
    "measure.plan": {"schema", "problems", "problems.base"},
    "measure.telemetry": {"schema"},
    "catalog.source_files": {"errors", "process.sandbox.folders", "process.text"},
    "catalog.yaml_model": {"errors", "catalog.source_files", "process.text"},
    "campaign.unit": {"catalog.request", "schema", "measure.stopping"},
    "campaign.executor": {"campaign.unit", "errors", "schema", "process.messages", "process.text"},
    "worker.burst": set(),
    "worker.load": {"schema", "worker.cuda.launch"},
}
#: An import that must not be → words of what is said about it.
PLANTED = {
    ("measure/stats.py", "from harness import cli"): "harness.measure is not allowed to import",
    ("errors.py", "from harness.schema import Case"): "harness.errors is not allowed to import",
    ("engine/run.py", "import torch"): "harness is not allowed to import torch",
    (
        "worker/burst.py",
        "from harness.judge import secret",
    ): "harness.worker is not allowed to import harness.judge",
    ("judge/secret.py", "from harness.worker import load"): "harness.judge is not allowed to",
    (
        "engine/processes/worker_process.py",
        "from harness.process.cuda.shared_memory import DTYPES",
    ): "is not allowed to import harness.process.cuda.shared_memory",
    (
        "campaign/unit.py",
        "from harness.campaign import local",
    ): "No cycles are allowed in harness.campaign",
    ("board/record.py", "from harness.engine import run"): "harness.board is not allowed to",
    ("newcomer.py", "x = 1"): "harness.newcomer",
}


def contract(root: Path) -> subprocess.CompletedProcess[str]:
    """What import-linter says of `root`/harness."""
    code = "from importlinter.cli import lint_imports_command as run; run()"
    rules = str(count.ROOT / "pyproject.toml")
    words = [sys.executable, "-c", code, "--no-cache", "--config", rules]
    return subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)


def imported(path: Path) -> set[str]:
    """Modules of harness/ that a file outside imports anywhere in its text."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return {name for name in found if name.split(".")[0] == "harness"}


@pytest.mark.parametrize("module", sorted(LAWS))
def test_law(module: str) -> None:
    found = count.modules().find_modules_directly_imported_by(f"harness.{module}")
    assert {name.removeprefix("harness.") for name in found} <= LAWS[module]


def test_the_contract_is_kept() -> None:
    told = contract(count.ROOT)
    assert told.returncode == 0, f"{told.stdout}\nthe lines are in pyproject.toml"


@pytest.mark.parametrize(("file", "line"), PLANTED, ids=lambda value: value.replace(" ", "_"))
def test_a_planted_import_breaks_it(file: str, line: str, tmp_path: Path) -> None:
    shutil.copytree(HARNESS, tmp_path / "harness", ignore=shutil.ignore_patterns("*.pyc"))
    path = tmp_path / "harness" / file
    path.write_text(f"{path.read_text() if path.exists() else ''}\n{line}\n")
    told = contract(tmp_path)
    assert told.returncode == 1, told.stdout
    assert PLANTED[file, line] in told.stdout


def test_what_runs_elsewhere_imports_nothing_of_the_house() -> None:
    for folder in (*count.ours(), count.ROOT / "baselines", count.ROOT / "exported"):
        for path in folder.rglob("*.py"):
            assert not imported(path), path


def test_running_the_command_line_loads_neither_torch_nor_numpy() -> None:
    names = "{'torch', 'numpy', 'scipy'}"
    code = f"import sys, run, harness.engine.session, harness.engine.run; sys.exit(bool({names} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=count.ROOT, check=False).returncode == 0


@pytest.mark.parametrize("module", ["judge.judge", "worker.__main__"])
def test_who_stands_ready_loads_no_compiler_of_torch(module: str) -> None:
    pytest.importorskip("torch")
    code = f"import sys, torch; had = 'torch._dynamo' in sys.modules; import harness.{module}"
    code += "; sys.exit('torch._dynamo' in sys.modules and not had)"
    assert subprocess.run([sys.executable, "-c", code], cwd=count.ROOT, check=False).returncode == 0
