"""The board's jobs from end to end without GitHub: four pull requests against a bare repository.

a good one · one that is slower than before · one that touches the harness · one with a forged artifact
"""

from __future__ import annotations

import calendar
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest

from harness import PROTOCOL
from harness.board import record
from harness.board.rank import Board, Row, interval_of
from harness.catalog.entrants import load_entrant
from harness.catalog.suites import load_suite
from harness.engine import session
from harness.errors import Exit
from harness.judge.secret import Secret
from harness.measure import audit
from harness.measure.gpu_specs import part_of
from harness.measure.verdict import asked_facts
from harness.problems import get_problem
from harness.problems.shapes import hidden_cases
from harness.process.project import MARK
from harness.process.sandbox.folders import remove_tree
from harness.schema import (
    Energy,
    Kind,
    Result,
    Sample,
    Slack,
    Speedup,
    Status,
    Stopping,
    Suite,
    Telemetry,
)
from tests.board.factory import H200, run_of, stretch
from tests.board.factory import result as row

pytestmark = pytest.mark.usefixtures("intervals_once")

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / ".github" / "scripts"
SECRET, HIDDEN_SECRET, SPENT = "5a" * 32, "3c" * 32, "77" * 32
PEAK_TFLOPS = part_of(H200).peak_tflops
OWNER, BASE = "octo-cat", Kind.BASELINE
MANIFEST = f"name: mine\nlanguage: triton\nowners: [{OWNER}]\n"


def script(name: str) -> ModuleType:
    """A file of .github/scripts as a module."""
    sys.path.insert(0, str(SCRIPTS))
    spec = importlib.util.spec_from_file_location(f"ci_{name}", SCRIPTS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


GUARD, STAGE, ARTIFACT, GATE = map(script, ("path_guard", "stage", "check_artifact", "gate"))
ARTIFACT.today = lambda: calendar.timegm((2026, 11, 21, 12, 0, 0))


def git(folder: Path, *words: str) -> str:
    """git with an identity of its own and nobody's configuration."""
    settings = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
    settings += ["-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always"]
    told = subprocess.run(
        ["git", "-C", str(folder), *settings, *words], capture_output=True, text=True, check=True
    )
    return told.stdout.strip()


class Hub:
    """A bare repository with pull requests, and the trusted checkout of its main branch."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.pulls = folder, 0
        self.origin, self.trusted = folder / "origin.git", folder / "trusted"
        folder.mkdir(parents=True, exist_ok=True)
        git(folder, "init", "--quiet", "--bare", str(self.origin))
        git(self.origin, "config", "uploadpack.allowAnySHA1InWant", "true")  # as GitHub has it
        git(folder, "clone", "--quiet", str(self.origin), str(self.trusted))
        for name in ("configs", "baselines"):
            shutil.copytree(ROOT / name, self.trusted / name)
        template, mine = (ROOT / "submissions/triton_template", self.trusted / "submissions/mine")
        shutil.copytree(template, mine, ignore=shutil.ignore_patterns("__pycache__"))
        self.write(self.trusted, "submissions/mine/manifest.yaml", MANIFEST)
        self.write(self.trusted, "submissions/bare.cu", "// a rung\n")
        self.write(self.trusted, "harness/judge.py", "honest = True\n")
        self.write(self.trusted, "results/README.md", "records\n")
        self.write(self.trusted, MARK, "")
        self.commit(self.trusted, "start")
        git(self.trusted, "push", "--quiet", "origin", "HEAD:main")

    @staticmethod
    def write(folder: Path, path: str, text: str) -> None:
        """One file of a checkout."""
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)

    @staticmethod
    def commit(folder: Path, message: str) -> str:
        """Everything there is; returns the commit."""
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", message)
        return git(folder, "rev-parse", "HEAD")

    def pull(self, change: Callable[[Path], None]) -> tuple[str, str]:
        """A pull request: (its number, its commit)."""
        self.pulls += 1
        work = self.folder / f"work{self.pulls}"
        git(self.folder, "clone", "--quiet", str(self.origin), str(work))
        change(work)
        commit = self.commit(work, "a change")
        git(work, "push", "--quiet", "origin", f"HEAD:refs/pull/{self.pulls}/head")
        return str(self.pulls), commit

    def stage(self, pull: str | None, commit: str, author: str = OWNER) -> int:
        """The measuring job's second step; without `pull` that of the board's job."""
        words = ["--commit", commit, "--author", author, "--repo", str(self.trusted)]
        return STAGE.main(words if pull is None else [*words, "--pull", pull])


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Hub(tmp_path_factory.mktemp("hub")).folder


@pytest.fixture
def hub(origin: Path, tmp_path: Path) -> Hub:
    """A fresh copy of the same hub."""
    return copied(origin, tmp_path / "hub")


def copied(origin: Path, folder: Path) -> Hub:
    """The hub below `origin` once more, in `folder`."""
    made = Hub.__new__(Hub)
    shutil.copytree(origin, folder, symlinks=True)
    made.folder, made.pulls = folder, 0
    made.origin, made.trusted = made.folder / "origin.git", made.folder / "trusted"
    git(made.trusted, "remote", "set-url", "origin", str(made.origin))
    return made


@pytest.fixture(scope="module")
def honest(origin: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Hub, list[Result]]:
    """A hub with a record of `mine`, and what an honest run brings; whoever is refused leaves it so."""
    hub = copied(origin, tmp_path_factory.mktemp("honest") / "hub")
    history_of(hub, 1.0)
    return hub, consistent(measured(hub, 0.9, run="r1", date="2026-11-21T00:00:00Z"))


def faster(work: Path) -> None:
    """What an honest author changes."""
    path = work / "submissions" / "mine" / "submission.py"
    path.write_text(path.read_text() + "\n# two stages more\n")


# --------------------------------------------------------------------------- a GPU runner, simulated


def measured(
    hub: Hub, factor: float, *, run: str, date: str, seed: int = 1, secret: str = SECRET
) -> list[Result]:
    """What an honest run of `mine` beside the suite's baselines writes, with this checkout's facts."""
    suite = load_suite("fa3", hub.trusted / "configs")
    told = {"mine": factor, "sdpa_flash": 2.0}
    results = run_of(told, seed=seed, run=run, date=date, baselines=("sdpa_cudnn", "sdpa_flash"))
    with mock.patch.object(session, "HOME", hub.trusted):
        commit = session.harness_commit()
    facts = {
        "suite_sha256": suite.sha256,
        "protocol": PROTOCOL,
        "harness_commit": commit,
        **opened(secret),
    }
    told_of = {who: of_folder(hub, *who) for who in {(r.entry, r.kind) for r in results}}
    official = [as_suite(r, suite, facts | told_of[r.entry, r.kind]) for r in results]
    return [*official, *on_hidden_shapes(official, suite)]


def opened(secret: str) -> dict[str, str]:
    """A secret that was told, and the commitment that it opens."""
    commitment = hashlib.sha256(bytes.fromhex(secret)).hexdigest()
    return {"secret": secret, "secret_commitment": commitment}


def on_hidden_shapes(results: list[Result], suite: Suite, secret: str = "") -> list[Result]:
    """Each row once more on what its run draws from a secret of its own, as long a burst."""
    secret = secret or hashlib.sha256(f"{HIDDEN_SECRET}{results[0].secret}".encode()).hexdigest()
    number, problem = Secret(bytes.fromhex(secret)).seed, get_problem(suite.problem)
    found = []
    for case in hidden_cases(suite.cases, suite.hidden, number, problem):
        for r in (r for r in results if r.case.headdim == case.headdim):
            alone = min(s.t1_ms for s in r.samples) / case.burst + 0.4
            told = [(s, (s.t1_ms / case.burst,) * case.burst) for s in r.samples]
            samples = tuple(
                s.model_copy(update={"calls_ms": calls, "alone_ms": alone}) for s, calls in told
            )
            facts = {"config": case.name, "case": case, "samples": samples, **opened(secret)}
            found.append(r.model_copy(update=facts))
    return found


def of_folder(hub: Hub, entry: str, kind: Kind) -> dict[str, str]:
    """What a row says of its entry's folder."""
    folder = hub.trusted / ("submissions" if kind is Kind.SUBMISSION else "baselines")
    problem = get_problem("attention_forward")
    entrant = load_entrant(folder / entry, kind, problem, folder)
    manifest = entrant.manifest
    told = {"author": manifest.author, "language": manifest.language}
    told["version"] = f"{manifest.version_of} 2.11.0" if manifest.version_of else ""
    return {"source_sha256": entrant.source_sha256, **told}


def as_suite(result: Result, suite: Suite, facts: dict) -> Result:
    """The same times in bursts of the suite's length."""
    case = next(case for case in suite.cases if case.name == result.config)
    samples = tuple(
        Sample(
            block=s.block,
            calls_ms=(s.latency_ms,) * case.burst,
            t2_ms=case.burst * s.latency_ms + 0.4,
            alone_ms=min(each.latency_ms for each in result.samples) + 0.4,
        )
        for s in result.samples
    )
    changes = {"case": case, "samples": samples, "null_gaps_ms": (0.395,) * len(samples), **facts}
    return result.model_copy(update=changes)


def consistent(results: list[Result]) -> list[Result]:
    """The rows as a run makes them of what they tell as measured."""
    done = []
    for config in dict.fromkeys(r.config for r in results):
        rows = {r.entry: r for r in results if r.config == config}
        done += audit.made_again(rows, as_told(rows)).values()
    return done


def as_told(rows: dict[str, Result]) -> audit.Asked:
    """One case, as its rows say that it was asked for."""
    first = next(iter(rows.values()))
    entrants = {name: audit._as_told(row, True) for name, row in rows.items()}
    suite = load_suite("fa3", ROOT / "configs")
    facts = asked_facts(suite, first.machine, first.integrity, first.harness_commit)
    return audit.Asked(first.case, facts, entrants, "sdpa_cudnn", "sdpa_cudnn")


def pack(folder: Path, results: list[Result]) -> Path:
    """An artifact: what `record.append` writes, without waiting for the disk at each line."""
    lines: dict[Path, list[str]] = {}
    for r in results:
        path = folder / r.machine.slug / record.file_name(r.date, r.suite, r.run)
        lines.setdefault(path, []).append(record.to_line(r) + "\n")
    for path, each in lines.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(each))
    return folder


def take(hub: Hub, artifact: Path) -> int:
    """The trusted job: believe nothing."""
    words = [str(artifact), "--submission", "mine", "--root", str(hub.trusted)]
    return ARTIFACT.main([*words, "--into", str(hub.trusted / "results")])


def gate(hub: Hub, before: Path) -> tuple[int, str]:
    """The trusted job: compare and write the comment."""
    comment = hub.folder / "comment.md"
    words = [
        "--submission",
        "mine",
        "--before",
        str(before),
        "--after",
        str(hub.trusted / "results"),
    ]
    code = GATE.main([*words, "--fail-on-regression", "1%", "--comment", str(comment)])
    return code, comment.read_text()


def history_of(hub: Hub, factor: float) -> Path:
    """Main's own record of `mine` before the pull request; returns a copy of the results."""
    facts = {"run": "r0", "date": "2026-11-20T00:00:00Z", "seed": 7, "secret": SPENT}
    for result in consistent(measured(hub, factor, **facts)):
        record.append(hub.trusted / "results", result)
    before = hub.folder / "before"
    shutil.copytree(hub.trusted / "results", before)
    return before


# --------------------------------------------------------------------------- the four pull requests


def test_a_good_one(hub: Hub) -> None:
    before = history_of(hub, 1.0)
    pull, commit = hub.pull(faster)
    assert hub.stage(pull, commit) == 0
    results = consistent(measured(hub, 0.9, run="r1", date="2026-11-21T00:00:00Z"))
    assert take(hub, pack(hub.folder / "artifact", results)) == 0
    code, words = gate(hub, before)
    assert code == 0
    assert words.startswith("<!-- attnboard")
    assert "**Place 1**" in words
    assert "faster by 1" in words


def test_a_new_one_has_nothing_to_be_slower_than(hub: Hub) -> None:
    shutil.copytree(hub.trusted / "results", hub.folder / "before")
    pull, commit = hub.pull(faster)
    assert hub.stage(pull, commit) == 0
    results = consistent(measured(hub, 3.0, run="r1", date="2026-11-21T00:00:00Z"))
    assert take(hub, pack(hub.folder / "artifact", results)) == 0
    assert gate(hub, hub.folder / "before")[0] == 0


def test_what_an_artifact_calls_its_run_is_believed_by_nobody(hub: Hub) -> None:
    """By the name of one not yet recorded it took a rival's file, or lay in it as of that run."""
    history_of(hub, 1.0)
    results = consistent(measured(hub, 0.9, run="r0", date="2026-11-21T00:00:00Z"))
    assert take(hub, pack(hub.folder / "artifact", results)) == 0
    recorded, _ = record.heads(hub.trusted / "results")
    dates = {
        run: {h.date[:10] for h in recorded if h.run == run} for run in {h.run for h in recorded}
    }
    assert dates.pop("r0") == {"2026-11-20"}
    assert [*dates.values()] == [{"2026-11-21"}]


def test_one_that_regresses(hub: Hub) -> None:
    before = history_of(hub, 0.9)
    pull, commit = hub.pull(faster)
    assert hub.stage(pull, commit) == 0
    results = consistent(measured(hub, 0.95, run="r1", date="2026-11-21T00:00:00Z"))
    assert take(hub, pack(hub.folder / "artifact", results)) == 0
    code, words = gate(hub, before)
    assert code == 1
    assert "**Regression** beyond 1.0%" in words
    assert "geomean slower by 5" in words


def after_four_small_losses(hub: Hub, **machine: str) -> list[int]:
    """What the gate says to each of four pull requests that lose 0.9 %; `machine`: of all but the first."""
    history_of(hub, 0.9)
    codes = []
    for step in range(1, 5):
        before = hub.folder / f"before{step}"
        shutil.copytree(hub.trusted / "results", before)
        facts = {"run": f"r{step}", "date": f"2026-11-2{step}T00:00:00Z", "seed": 7}
        for result in consistent(measured(hub, 0.9 * 1.009**step, **facts)):
            told = result.machine.model_copy(update=machine)
            record.append(hub.trusted / "results", result.model_copy(update={"machine": told}))
        codes.append(gate(hub, before)[0])
    return codes


def test_small_losses_of_several_pull_requests_are_one_large_one(hub: Hub) -> None:
    assert after_four_small_losses(hub) == [0, 1, 1, 1]


def test_another_version_of_the_libraries_is_no_standard(hub: Hub) -> None:
    """Beside a faster cuDNN every entry leads by less."""
    assert after_four_small_losses(hub, torch="99.0") == [0, 0, 1, 1]


def test_a_last_record_beside_other_libraries_is_told_and_fails_nothing(hub: Hub) -> None:
    """Nothing of the entry has changed: its baseline became faster."""
    before = history_of(hub, 0.8)
    facts = {"run": "r1", "date": "2026-11-21T00:00:00Z", "seed": 7}
    for result in consistent(measured(hub, 0.9, **facts)):
        told = result.machine.model_copy(update={"cudnn": "99"})
        record.append(hub.trusted / "results", result.model_copy(update={"machine": told}))
    code, words = gate(hub, before)
    assert code == 0
    assert "beside other libraries, which fails nothing: " in words
    assert "geomean slower by 11" in words


def test_a_slower_card_is_told_and_fails_nothing(hub: Hub) -> None:
    """The same source was up to 5 % slower on another H200."""
    assert after_four_small_losses(hub, uuid="GPU-another") == [0, 0, 1, 1]
    before = hub.folder / "before1"
    code, told = gate(hub, before)
    assert code == 0
    assert "another card or beside other libraries, which fails nothing: " in told
    assert "geomean slower by 3" in told


def test_a_noisy_record_is_a_standard_all_the_same() -> None:
    """Slow bursts cost its value nothing, and who came behind it could be 40 % slower."""
    noisy = Speedup(against="sdpa_cudnn", value=1.428, low=0.784, high=1.431)
    slower = Speedup(against="sdpa_cudnn", value=1.298, low=1.297, high=1.299)
    then, now = row(speedup=noisy), row(speedup=slower)
    assert GATE.is_regression(GATE.changed(then, now).ratio, 0.01)
    mine = Row("mine", (now,), speedup=interval_of(slower))
    board = Board("", "", "5" * 64, 2, (now.config,), "sdpa_cudnn", (mine,), (), (), (), ())
    old = replace(mine, results=(then,), speedup=interval_of(noisy))
    said = GATE.comment((board, mine), (board, old), {}, {}, 0.01)
    assert "Against its own last record: slower by 9.1%" in said


def test_earlier_records_are_compared_by_todays_rule(tmp_path: Path) -> None:
    rows = run_of({"mine": 0.9}, configs=("hdim64_seq4k",))
    (mine,) = (r for r in rows if r.entry == "mine")
    old = mine.speedup.model_copy(update={"low": 0.5, "rule": 1})
    record.append(tmp_path, rows[0], mine.model_copy(update={"speedup": old}))
    now = GATE.find(tmp_path, "mine")
    assert [r.speedup for run in GATE.earlier(tmp_path, None, now) for r in run] == [mine.speedup]


def approximate(result: Result, config: str = "") -> Result:
    """An error above that of float16, on one config or on all."""
    assert result.error
    error = result.error.model_copy(update={"rel_l2": 0.01})
    wanted = result.entry == "mine" and config in {"", result.config}
    return result.model_copy(update={"error": error}) if wanted else result


@pytest.mark.parametrize(
    "spoiled",
    [
        lambda rows: everywhere(rows, integrity="unlocked/2"),
        lambda rows: everywhere(rows, null_gaps_ms=(0.1,) * 20),
        lambda rows: list(map(approximate, rows)),
    ],
    ids=["unlocked", "too_loose", "approximate"],
)
def test_a_last_record_that_no_board_ranks_beside_it_is_no_standard(
    spoiled: Callable[[list[Result]], list[Result]], hub: Hub
) -> None:
    """A fifth faster, and no word of it can be held against an honest run."""
    facts = {"run": "r0", "date": "2026-11-20T00:00:00Z", "seed": 7, "secret": SPENT}
    for result in consistent(spoiled(measured(hub, 0.7, **facts))):
        record.append(hub.trusted / "results", result)
    before = hub.folder / "before"
    shutil.copytree(hub.trusted / "results", before)
    results = consistent(measured(hub, 0.9, run="r1", date="2026-11-21T00:00:00Z"))
    assert take(hub, pack(hub.folder / "artifact", results)) == 0
    assert gate(hub, before)[0] == 0


def test_a_commitment_that_somebody_names_spends_no_secret(hub: Hub) -> None:
    facts = {"run": "r0", "date": "2026-11-20T00:00:00Z", "seed": 7}
    named = {"secret": "", "secret_commitment": opened(SECRET)["secret_commitment"]}
    for result in consistent(measured(hub, 0.7, **facts)):
        record.append(hub.trusted / "results", result.model_copy(update=named))
    results = consistent(measured(hub, 0.9, run="r1", date="2026-11-21T00:00:00Z"))
    assert take(hub, pack(hub.folder / "artifact", results)) == 0


def losses(hub: Hub, spoiled: Callable[[int, Result], Result]) -> list[int]:
    """What the gate says of four losses of 0.9 % on the second config."""
    codes = []
    for step in range(5):
        before = hub.folder / f"before{step}"
        shutil.copytree(hub.trusted / "results", before)
        facts = {"run": f"r{step}", "date": f"2026-11-2{step}T00:00:00Z", "seed": 7}
        rows = [spoiled(step, row) for row in measured(hub, 0.9, **facts)]
        rows = [
            slowed(row, 1.009**step)
            if (row.entry, row.config) == ("mine", "hdim128_seq8k")
            else row
            for row in rows
        ]
        for result in consistent(rows):
            record.append(hub.trusted / "results", result)
        codes.append(gate(hub, before)[0])
    return codes


def test_losses_on_a_config_of_another_class_than_the_first_add_up_too(hub: Hub) -> None:
    assert losses(hub, lambda _, row: approximate(row, "hdim128_seq8k")) == [0, 0, 1, 1, 1]


def test_who_is_less_exact_is_held_against_what_was_exact(hub: Hub) -> None:
    """The class of one config, there and back, made each run a stranger to the one before."""

    def turns(step: int, row: Result) -> Result:
        return approximate(row, "hdim64_seq4k") if step % 2 else row

    assert losses(hub, turns) == [0, 0, 1, 1, 1]


def test_the_gate_looks_at_the_board_that_holds_what_came(hub: Hub) -> None:
    """A row of another GPU, dated later, is on a board where nothing is new."""
    before = history_of(hub, 0.9)
    for each in on_another_chip(
        measured(hub, 0.9, run="r0h", date="2026-11-21T09:00:00Z", secret=SPENT),
        gpu="NVIDIA H100 80GB HBM3",
    ):
        for results in (before, hub.trusted / "results"):
            record.append(results, each)
    results = consistent(measured(hub, 0.9, run="r1", date="2026-11-21T00:00:00Z", seed=3))
    assert take(hub, pack(hub.folder / "artifact", results)) == 0
    assert gate(hub, before)[0] == 0


def test_of_two_suites_of_one_day_the_gate_asks_for_the_later_one(hub: Hub) -> None:
    """By the second: the board of the first suite by name holds nothing new."""
    before = history_of(hub, 0.9)
    results = consistent(measured(hub, 0.9, run="r1", date="2026-11-21T02:00:00Z", seed=3))
    assert take(hub, pack(hub.folder / "artifact", results)) == 0
    for each in measured(hub, 0.9, run="r0", date="2026-11-21T01:00:00Z"):
        other = {"suite": "a_suite", "suite_sha256": "a" * 64}  # the same morning
        record.append(hub.trusted / "results", each.model_copy(update=other))
    found = GATE.find(hub.trusted / "results", "mine")
    assert found[0].suite == results[0].suite
    assert gate(hub, before)[0] == 0


def test_the_same_speed_again_is_no_regression(hub: Hub) -> None:
    before = history_of(hub, 0.9)
    results = consistent(measured(hub, 0.9, run="r1", date="2026-11-21T00:00:00Z", seed=3))
    assert take(hub, pack(hub.folder / "artifact", results)) == 0
    assert gate(hub, before)[0] == 0


def test_one_that_touches_the_harness(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    def change(work: Path) -> None:
        faster(work)
        hub.write(work, "harness/judge.py", "honest = False\n")

    pull, commit = hub.pull(change)
    assert hub.stage(pull, commit) == 1
    assert "'harness/judge.py': outside submissions/<name>/" in capsys.readouterr().out
    assert "honest = True" in (hub.trusted / "harness" / "judge.py").read_text()
    assert "two stages" not in (hub.trusted / "submissions" / "mine" / "submission.py").read_text()


def one(results: list[Result], **changes: object) -> list[Result]:
    """`mine` on the first config changed; everything else as it was."""
    at = next(i for i, r in enumerate(results) if r.entry == "mine")
    return [*results[:at], results[at].model_copy(update=changes), *results[at + 1 :]]


def hurried(result: Result) -> Result:
    """A tenth less told than was waited for."""
    samples = tuple(
        s.model_copy(update={"calls_ms": tuple(0.9 * t for t in s.calls_ms)})
        for s in result.samples
    )
    return result.model_copy(update={"samples": samples})


def a_fifth(result: Result) -> Result:
    """Of its time, on both clocks."""
    return slowed(result, 1 / 5)


def slowed(result: Result, factor: float) -> Result:
    """So many times its time, on both clocks."""
    samples = tuple(
        s.model_copy(
            update={
                "calls_ms": tuple(t * factor for t in s.calls_ms),
                "alone_ms": (s.alone_ms - 0.4) * factor + 0.4,
                "t2_ms": s.t1_ms * factor + s.gap_ms,
            }
        )
        for s in result.samples
    )
    return result.model_copy(update={"samples": samples})


def with_its_best_again(result: Result) -> Result:
    """Its best block in the place of its worst."""
    ordered = sorted(result.samples, key=lambda s: s.latency_ms)
    best = ordered[0].model_copy(update={"block": ordered[-1].block})
    samples = tuple(best if s == ordered[-1] else s for s in result.samples)
    return result.model_copy(update={"samples": samples})


def everywhere(results: list[Result], **changes: object) -> list[Result]:
    """The same told by every row."""
    return [result.model_copy(update=changes) for result in results]


def on_another_chip(results: list[Result], **changes: object) -> list[Result]:
    """The machine's facts changed in every row."""
    machine = results[0].machine.model_copy(update=changes)
    return everywhere(results, machine=machine, gpu=machine.gpu)


def failed(results: list[Result], entry: str, status: Status, **changes: object) -> list[Result]:
    """`entry` as if it had ended so everywhere."""
    told = {"status": status, **changes}
    return consistent([r.model_copy(update=told) if r.entry == entry else r for r in results])


def slower_from_block_to_block(result: Result) -> Result:
    """By a third in all, on both clocks."""
    by = [1 + i / 3 / len(result.samples) for i in range(len(result.samples))]
    samples = tuple(
        s.model_copy(
            update={"calls_ms": tuple(f * t for t in s.calls_ms), "t2_ms": f * s.t1_ms + s.gap_ms}
        )
        for f, s in zip(by, result.samples, strict=True)
    )
    return result.model_copy(update={"samples": samples})


def many_times(result: Result, times: int) -> Result:
    """Its blocks again under new numbers."""
    count = len(result.samples)
    samples = tuple(
        s.model_copy(update={"block": s.block + n * count})
        for n in range(times)
        for s in result.samples
    )
    return result.model_copy(update={"samples": samples, "blocks": len(samples)})


def without_its_slowest(result: Result) -> Result:
    """Half of the bursts called late."""
    slow = sorted(result.samples, key=lambda s: s.latency_ms)[len(result.samples) // 2 :]
    samples = [s.model_copy(update={"late": s in slow}) for s in result.samples]
    return result.model_copy(update={"samples": tuple(samples), "blocks": len(samples) - len(slow)})


def with_a_second_secret(results: list[Result]) -> list[Result]:
    """One headdim's hidden shape from another secret than the others'."""
    suite = load_suite("fa3", ROOT / "configs")
    kept = [r for r in results if r.config != "hidden_hdim64"]
    official = [r for r in results if r.config == "hdim64_seq4k"]
    more = [r for r in on_hidden_shapes(official, suite, "12" * 32) if r.config == "hidden_hdim64"]
    return consistent([*kept, *more])


OFFICIAL = frozenset(case.name for case in load_suite("fa3", ROOT / "configs").cases)
FORGERIES: dict[str, tuple[Callable[[list[Result]], list[Result]], str]] = {
    "faster than its samples": (lambda r: one(r, latency_ms=0.3), "latency_ms is 0.3"),
    "another speed-up": (
        lambda r: one(r, speedup=Speedup(against="sdpa_cudnn", value=3, low=2.9, high=3.1)),
        "speedup.value is 3",
    ),
    "another source": (lambda r: one(r, source_sha256="0" * 64), "source_sha256 is 0"),
    "another's row": (lambda r: one(r, entry="flash_attn_9"), "an entry that is none of this run"),
    "a baseline of its own": (
        lambda r: one(r, kind=Kind.BASELINE),
        "kind is baseline, asked and measured it is submission",
    ),
    "an easier suite": (lambda r: one(r, suite_sha256="1" * 64), "suite_sha256 is 1"),
    "an easier shape": (
        lambda r: one(r, case=r[0].case.model_copy(update={"seqlen": 128})),
        "whose hash it has",
    ),
    "another harness": (lambda r: one(r, harness_commit="f" * 12), "harness_commit is f"),
    "a patched harness": (
        lambda r: [x.model_copy(update={"harness_commit": f"{x.harness_commit}+"}) for x in r],
        "+, asked and measured it is ",
    ),
    "more work than it did": (lambda r: one(r, problem="attention_backward"), "whose hash it has"),
    "a better class": (
        lambda r: one(r, error=r[0].error.model_copy(update={"rel_l2": 0.01})),
        "numerics_class is exact, asked and measured it is approximate",
    ),
    "a wrong secret": (lambda r: one(r, secret="00" * 32), "secret is 0000"),
    "no secret": (
        lambda r: everywhere(r, secret="", secret_commitment=""),
        "secret was never told",
    ),
    "times that the outside did not see": (
        lambda r: [hurried(x) if x.entry == "mine" else x for x in r],
        "it says PASSED and is TIME_CLAIM_REJECTED: 20 of 20 bursts took longer",
    ),
    "a secret that everybody knows": (lambda r: one(r, **opened(SPENT)), "was told before"),
    "that secret as long again": (lambda r: one(r, **opened(f"{SPENT}00")), "secret"),
    "hidden shapes of its own choice": (
        lambda r: [x.model_copy(update=opened("12" * 32)) if x.case.hidden else x for x in r],
        "whose hash it has",
    ),
    "a hidden shape from each of several secrets": (
        with_a_second_secret,
        "hidden shapes of several secrets",
    ),
    "hidden shapes left out": (
        lambda r: [x for x in r if not x.case.hidden or x.entry != "mine"],
        "mine has no record on hidden_hdim",
    ),
    "a library's hidden shapes left out": (
        lambda r: [x for x in r if not x.case.hidden or x.entry != "sdpa_flash"],
        "sdpa_flash has no record on hidden_hdim",
    ),
    "one hidden shape of three": (
        lambda r: [x for x in r if x.entry != "mine" or x.config in {*OFFICIAL, "hidden_hdim64"}],
        "mine has no record on hidden_hdim128",
    ),
    "one of a library's hidden shapes of three": (
        lambda r: [x for x in r if x.entry == "mine" or x.config in {*OFFICIAL, "hidden_hdim64"}],
        "has no record on hidden_hdim256",
    ),
    "no hidden shapes at all": (
        lambda r: [x for x in r if not x.case.hidden],
        "mine has no record on hidden_hdim",
    ),
    "a hidden shape's name for an easy one": (
        lambda r: one(r, config="hidden_hdim64"),
        "its case is hdim64_seq4k",
    ),
    "another author": (
        lambda r: one(r, author="NVIDIA"),
        "author is NVIDIA, asked and measured it is unknown",
    ),
    "a smaller error": (
        lambda r: one(r, max_diff=0.0),
        "max_diff is 0.0, asked and measured it is 0.0012",
    ),
    "an error below nothing": (
        lambda r: one(r, error=r[0].error.model_copy(update={"rel_l2": -1.0})),
        "error is not below the contract",
    ),
    "more of the peak": (lambda r: one(r, peak_pct=99.9), "peak_pct is 99.9"),
    "a baseline that held still": (lambda r: one(r, drift_pct=0.0), "drift_pct is 0.0"),
    "a clock that was held down": (lambda r: one(r, clock_mhz=900.0), "clock_mhz is 900"),
    "more of what that clock gives": (lambda r: one(r, clock_pct=99.0), "clock_pct is "),
    "an lse that nobody asked for": (lambda r: one(r, lse=True), "lse is True"),
    "words of a run that stops early": (
        lambda r: one(r, stopping=Stopping(rule="race 3", looks=1, why="place 1, says who")),
        "a run that stops early",
    ),
    "a stretch in no time": (
        lambda r: one(r, sustained=stretch(1e-6)),
        "or a stretch, that nobody asked for",
    ),
    "a level that there is not": (lambda r: one(r, integrity="judged/9"), "integrity: "),
    "less slack": (
        lambda r: one(r, slack=Slack(burst_pct=2, mean_pct=0.1, pace="sdpa_cudnn")),
        "slack.mean_pct is 0.1, asked and measured it is ",
    ),
    "a pace of its own choice": (
        lambda r: one(r, slack=r[0].slack.model_copy(update={"pace": "sdpa_flash"})),
        "slack.pace is sdpa_flash, asked and measured it is sdpa_cudnn",
    ),
    "no pace": (
        lambda r: one(r, slack=r[0].slack.model_copy(update={"pace": ""})),
        "slack.pace is , asked and measured it is sdpa_cudnn",
    ),
    "no second clock": (lambda r: one(r, slack=None), "slack is None, asked and measured it is"),
    "a run of the future": (
        lambda r: everywhere(r, date="9999-12-31T00:00:00Z"),
        "date 9999-12-31T00:00:00Z has not come",
    ),
    "a run of this evening": (  # no other of today would be after it
        lambda r: everywhere(r, date="2026-11-21T23:00:00Z"),
        "date 2026-11-21T23:00:00Z is not of 2026-11-19 to 2026-11-21T12:10:00Z",
    ),
    "a run of no day": (lambda r: everywhere(r, date="2026-11-31"), "date: Value error, day "),
    "a run of long ago": (lambda r: everywhere(r, date="1970-01-01T00:00:00Z"), "is not of 2026-"),
    "a run before the last": (
        lambda r: everywhere(r, date="2026-11-19T00:00:00Z"),
        "is not after its last record's, 2026-11-20T00:00:00Z",
    ),
    "another run's file": (
        lambda r: everywhere(r, run="-r0-", date="2026-11-20T23:00:00Z"),
        "run: String should match pattern",
    ),
    "a chip that nobody knows": (
        lambda r: on_another_chip(r, sms=100_000, capability="99.9"),
        "NVIDIA H200: none has 100000 SMs of 99.9, 140 GiB",
    ),
    "a faster chip of the same name": (
        lambda r: on_another_chip(r, sms=148, capability="10.0"),
        "NVIDIA H200: none has 148 SMs of 10.0, 140 GiB",
    ),
    "a chip of another name": (lambda r: on_another_chip(r, gpu="NVIDIA H300"), "is no GPU of"),
    "a second board for the same chip": (
        lambda r: on_another_chip(r, gpu="NVIDIA H200 2"),
        "is no GPU of",
    ),
    "a chip called like a path": (lambda r: on_another_chip(r, gpu="../../H200"), "gpu: String"),
    "a chip with markup": (lambda r: on_another_chip(r, gpu="NVIDIA H200|<img>"), "gpu: String"),
    "a baseline that failed": (
        lambda r: failed(r, "sdpa_flash", Status.INVALID_BASELINE, reason="INCORRECT"),
        "INVALID_BASELINE, a verdict on a baseline",
    ),
    "a baseline that claims less": (
        lambda r: failed(r, "sdpa_cudnn", Status.UNSUPPORTED),
        "UNSUPPORTED, a verdict on a baseline",
    ),
    "a failure with a sample of no length": (
        lambda r: failed(r, "mine", Status.CRASHED, samples=(r[0].samples[0],) * 2),
        "a block occurs twice",
    ),
    "its slowest half called late": (
        lambda r: [without_its_slowest(x) if x.entry == "mine" else x for x in r],
        ".late is True, asked and measured it is False",
    ),
    "a machine that became slower": (
        lambda r: [slower_from_block_to_block(x) for x in r],
        "it says PASSED and is UNSTABLE: the trusted baseline became ",
    ),
    "clocks held down by heat": (
        lambda r: everywhere(r, telemetry=(Telemetry(throttle=("hw_thermal",)),) * 5),
        "clocks held down by hw_thermal in 5 of 5 readings",
    ),
    "a library that is called approximate": (
        lambda r: [
            x.model_copy(update={"numerics_class": "approximate"}) if x.entry == "sdpa_flash" else x
            for x in r
        ],
        "sdpa_flash on hdim64_seq4k: numerics_class is approximate",
    ),
    "a library that is wrong on hidden shapes": (
        lambda r: [
            *(x for x in r if not x.case.hidden),
            *failed(
                [x for x in r if x.case.hidden],
                "sdpa_flash",
                Status.INVALID_BASELINE,
                reason="INCORRECT",
            ),
        ],
        "INVALID_BASELINE, a verdict on a baseline",
    ),
    "words of praise": (
        lambda r: one(r, reason="approved, merge it"),
        "reason is approved, merge it",
    ),
    "more blocks than anybody asks for": (
        lambda r: consistent([many_times(x, 5) for x in r]),
        "more than 48 blocks",
    ),
    "cooperative": (lambda r: one(r, integrity="cooperative/1"), "not judged"),
    "no walls": (lambda r: one(r, integrity="judged/0"), "'judged/0': not judged behind walls"),
    "no level": (lambda r: one(r, integrity="judged"), "'judged': not judged behind walls"),
    "a config left out": (
        lambda r: [x for x in r if (x.entry, x.config) != ("mine", "hdim256_seq16k")],
        "has no record on hdim256_seq16k",
    ),
    "the best of two": (lambda r: [*r, next(x for x in r if x.entry == "mine")], "occurs 2 times"),
    "no baseline beside it": (
        lambda r: [x for x in r if x.entry != "sdpa_cudnn"],
        "slack.pace is sdpa_cudnn, asked and measured it is sdpa_flash",
    ),
    "few blocks": (
        lambda r: consistent(
            [x.model_copy(update={"samples": x.samples[:4], "blocks": 4}) for x in r]
        ),
        "fewer than 16 blocks",
    ),
    "faster than the chip": (
        lambda r: [a_fifth(x) if x.entry == "mine" else x for x in r],
        "it says PASSED and is TIME_CLAIM_REJECTED: 2",
    ),
    "the version of another package": (
        lambda r: one(r, version="cudnn 99"),
        "version is cudnn 99, asked and measured it is",
    ),
    "joules of a counter that nobody reads any more": (
        lambda r: one(r, energy=Energy(joules_per_call=0.1, low_j=0.0, high_j=0.2)),
        "energy is ",
    ),
    "one burst told twice": (
        lambda r: consistent([with_its_best_again(x) if x.entry == "mine" else x for x in r]),
        "one of its bursts is told twice",
    ),
    "no gaps of the null kernel": (
        lambda r: everywhere(r, null_gaps_ms=()),
        "fewer than 16 gaps of the null kernel",
    ),
    "no readings of the chip": (
        lambda r: everywhere(r, telemetry=()),
        "fewer readings of the GPU than blocks",
    ),
}


@pytest.mark.parametrize("name", sorted(FORGERIES))
def test_one_whose_artifact_is_forged(
    honest: tuple[Hub, list[Result]], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (hub, results), (forge, reason) = honest, FORGERIES[name]
    untouched = sorted((hub.trusted / "results").rglob("*"))
    assert take(hub, pack(tmp_path / "artifact", forge(results))) == 1
    assert reason in capsys.readouterr().out
    assert sorted((hub.trusted / "results").rglob("*")) == untouched


def test_a_row_longer_than_a_run_s_is_not_kept_until_all_are_read(
    honest: tuple[Hub, list[Result]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """500 of 20,000 blocks took 12 GiB before the first was refused."""
    (hub, results), long = honest, {"telemetry": (Telemetry(),) * 1000}
    artifact = pack(tmp_path / "artifact", one(results, **long))
    expected = ARTIFACT.expect(hub.trusted, "mine", "fa3", hub.trusted / "results")
    with pytest.raises(ValueError, match=r"jsonl':\d+: mine on \w+: more than \d+ blocks"):
        list(ARTIFACT.read(artifact, expected))
    assert take(hub, artifact) == 1
    assert "blocks" in capsys.readouterr().out


def test_what_forgeries_are_made_of_is_taken(
    honest: tuple[Hub, list[Result]], tmp_path: Path
) -> None:
    hub = copied(honest[0].folder, tmp_path / "hub")
    assert take(hub, pack(tmp_path / "artifact", honest[1])) == 0


def test_an_artifact_is_taken_whole_or_not_at_all(
    honest: tuple[Hub, list[Result]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Six of eighteen rows stood in the results when one could not be written."""
    hub, written = copied(honest[0].folder, tmp_path / "hub"), record.to_line

    def to_line(row: Result) -> str:
        return written(row) if row.config != "hdim256_seq16k" else "\ud800".encode().decode()

    artifact, before = pack(tmp_path / "artifact", honest[1]), files(hub.trusted / "results")
    monkeypatch.setattr(record, "to_line", to_line)
    assert take(hub, artifact) == 1
    assert "refused: mine on hdim256_seq16k: 'utf-8' codec" in capsys.readouterr().out
    assert files(hub.trusted / "results") == before


def test_a_row_that_nobody_would_read_again_is_not_taken(
    honest: tuple[Hub, list[Result]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Brackets that came as escapes: rows on hidden shapes were taken and stood on no board."""
    hub, hides = (
        copied(honest[0].folder, tmp_path / "hub"),
        {f"{n}{'[' * 99_000}": 0.5 for n in range(6)},
    )
    rows = [r.model_copy(update={"likeness": hides} if r.case.hidden else {}) for r in honest[1]]
    (path,) = (path for path in pack(tmp_path / "artifact", rows).rglob("*") if path.is_file())
    bodies = (line.rpartition(',"crc32')[0] for line in path.read_text().splitlines())
    came = [body.replace("[" * 99_000, "\\u005b" * 99_000) for body in bodies]
    path.write_text("".join(f'{b},"crc32":"{zlib.crc32(b.encode()):08x}"}}\n' for b in came))
    before = files(hub.trusted / "results")
    assert take(hub, tmp_path / "artifact") == 1
    assert "it has more lists than a row" in capsys.readouterr().out
    assert files(hub.trusted / "results") == before


def test_a_full_disk_is_not_the_artifacts_fault(
    honest: tuple[Hub, list[Result]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = copied(honest[0].folder, tmp_path / "hub")
    shutil.rmtree(hub.trusted / "results" / honest[1][0].machine.slug, ignore_errors=True)
    (hub.trusted / "results" / honest[1][0].machine.slug).write_text("no folder")
    assert take(hub, pack(tmp_path / "artifact", honest[1])) == Exit.STORAGE
    out = capsys.readouterr().out
    assert "take the same artifact again" in out
    assert "refused" not in out and "printed above" not in out


def files(folder: Path) -> dict[Path, bytes]:
    """Every file and what it holds."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_failed_row_with_figures_is_no_record(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    results = consistent(measured(hub, 0.9, run="r1", date="2026-11-21T00:00:00Z"))
    forged = [r.model_copy(update={"status": Status.CRASHED, "latency_ms": None}) for r in results]
    assert take(hub, pack(hub.folder / "artifact", forged)) == 1
    assert "if and only if the status is PASSED" in capsys.readouterr().out


def test_one_that_failed_honestly_is_recorded_and_told(hub: Hub) -> None:
    before = history_of(hub, 1.0)
    results = consistent(measured(hub, 0.9, run="r1", date="2026-11-21T00:00:00Z"))
    results = failed(results, "mine", Status.CRASHED, reason="SIGSEGV")
    results = failed(results, "sdpa_flash", Status.CONTENDED)
    assert take(hub, pack(hub.folder / "artifact", results)) == 0
    code, words = gate(hub, before)
    assert code == 1
    assert "CRASHED" in words


def test_who_broke_the_run_is_recorded_and_told(hub: Hub) -> None:
    """The others began again without it, with secrets of their own; it stays one run."""
    before = history_of(hub, 1.0)
    results = consistent(measured(hub, 0.9, run="r1", date="2026-11-21T00:00:00Z"))
    results = failed(results, "mine", Status.BROKE_THE_RUN, reason="in its turn the judge failed")
    untold = {"secret": "", "secret_commitment": "ab" * 32}
    results = [r for r in results if r.entry != "mine" or not r.case.hidden]
    results = [r.model_copy(update=untold) if r.entry == "mine" else r for r in results]
    assert take(hub, pack(hub.folder / "artifact", results)) == 0
    code, words = gate(hub, before)
    assert code == 1
    assert "BROKE_THE_RUN" in words


def test_old_figures_are_no_green_light(hub: Hub) -> None:
    before = history_of(hub, 1.0)
    code, words = gate(hub, before)
    assert code == 1
    assert words.startswith("<!-- attnboard")
    assert "Nothing new was recorded" in words


def test_an_old_figure_beside_new_ones_is_no_green_light(hub: Hub) -> None:
    before = history_of(hub, 1.0)
    results = consistent(measured(hub, 0.9, run="r1", date="2026-11-21T00:00:00Z"))
    config = results[0].config
    nothing = {"correct": 0, "numerics_class": "", "samples": (), "blocks": 0}
    figures = ("latency_ms", "tflops", "p10_ms", "p90_ms", "speedup", "error", "peak_pct")
    for name in (*figures, "max_diff"):
        nothing[name] = None
    results = [
        r.model_copy(update={**nothing, "status": Status.HARNESS_ERROR})
        if (r.entry, r.config) == ("mine", config)
        else r
        for r in results
    ]
    assert take(hub, pack(hub.folder / "artifact", results)) == 0
    code, words = gate(hub, before)
    assert code == 1
    assert f"Nothing new was recorded on {config}" in words


# --------------------------------------------------------------------------- an artifact as files


def link(folder: Path) -> None:
    (folder / "x.jsonl").symlink_to("/etc/passwd")


def huge(folder: Path) -> None:
    with (folder / "x.jsonl").open("wb") as file:
        file.truncate(40 << 20)


def many(folder: Path) -> None:
    for number in range(100):
        (folder / f"{number}.jsonl").write_text("")


def deep(folder: Path, name: str = "d" * 250, depth: int = 30) -> None:
    home = Path.cwd()
    os.chdir(folder)
    try:
        for _ in range(depth):  # 7,530 letters, and no path has more than 4,096
            Path(name).mkdir()
            os.chdir(name)
    finally:
        os.chdir(home)


def nested(folder: Path) -> None:
    body = b"[" * 200_000
    line = body + b',"crc32":"%08x"}' % zlib.crc32(body)
    (folder / "x.jsonl").write_bytes(line)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (link, "a link or device"),
        (huge, "more than 32 MiB"),
        (many, "files and folders"),
        (nested, "'x.jsonl':1"),
        (deep, "it cannot be read: [Errno 36]"),
        (lambda folder: deep(folder, "d", 1500), "files and folders"),
        (lambda folder: (folder / "run.sh").write_text("rm"), "only .jsonl files"),
        (lambda folder: (folder / "\x1b[2J::error::.jsonl").write_text("{}"), "cut short"),
        (lambda folder: None, "holds no record"),
    ],
)
def test_files_that_are_no_records(
    honest: tuple[Hub, list[Result]],
    make: Callable[[Path], None],
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make(tmp_path)
    assert take(honest[0], tmp_path) == 1
    remove_tree(tmp_path)  # which pytest cannot
    out = capsys.readouterr().out
    assert reason in out
    assert "\x1b" not in out
