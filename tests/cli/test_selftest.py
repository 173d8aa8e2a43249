"""The corpus: its files, and how it is run. What the specimens do is tests/test_corpus.py.

Every defence can be taken out of a run from outside; what comes of it is `selftest --ablate`.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from harness.catalog.suites import load_suite
from harness.cli.selftest import corpus, plan
from harness.cli.selftest.corpus import Outcome, Specimen
from harness.cli.selftest.plan import TOGETHER, ablate
from harness.cli.selftest.specimen import unfold
from harness.cli.selftest.stand_ins import STAND_INS, StandIn, stand_ins, standing_in, without
from harness.engine import session
from harness.errors import SuiteError
from harness.measure import two_clocks
from harness.measure.machine import Machine, inspect_machine
from harness.measure.two_clocks import check_clocks
from harness.problems import get_problem
from harness.process import forkserver, prestart
from harness.process.sandbox.enter import usual_level
from harness.schema import Claims, Manifest, Result, Sample, Status
from tests.board.factory import result

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
def cheaters(tmp_path: Path) -> Path:
    folder = tmp_path / "tests" / "corpus" / "cheaters"
    folder.mkdir(parents=True)
    (folder.parent / "right_answer.py").write_text("def attention(): ...\n")
    return folder


def read(path: Path) -> dict[str, object]:
    found: dict[str, object] = yaml.safe_load(path.read_text())
    return found


def test_it_becomes_the_folder_that_a_run_takes(cheaters: Path, tmp_path: Path) -> None:
    (cheaters / "kept.py").write_text(ONE)
    (folder,) = unfold(cheaters / "kept.py", tmp_path / "out")
    assert sorted(path.name for path in folder.iterdir()) == [
        "expect.yaml", "manifest.yaml", "right_answer.py", "submission.py",
    ]  # fmt: skip
    assert (folder / "submission.py").read_text() == ONE.partition("\n")[2]
    manifest = Manifest.model_validate(read(folder / "manifest.yaml"))
    assert (manifest.name, manifest.problem) == ("b9_mine", "attention_backward")
    assert manifest.description == "Returns the answer of the call before."
    assert manifest.claims.headdims == (64,)
    expect = corpus.Expectation.model_validate(read(folder / "expect.yaml"))
    assert expect.exploit == manifest.description
    assert (expect.seen, expect.min_latency_ms) == ("somewhere", 2.5)


def test_a_file_holds_many_and_further_files_of_them(cheaters: Path, tmp_path: Path) -> None:
    other = ONE.replace("b9_mine", "b8_other")
    (cheaters / "kept.py").write_text(
        f"# Alike.\n\n{ONE}\n\n{other}\n# %% b8_other/build/deep.py\nX = 1\n"
    )
    (cheaters / "b1_more.py").write_text(ONE.partition("\n")[2])
    found = corpus.load_corpus(tmp_path)
    assert [specimen.name for specimen in found] == ["b1_more", "b8_other", "b9_mine"]
    assert {specimen.problem for specimen in found} == {"attention_backward"}
    assert (found[1].folder / "build" / "deep.py").read_text() == "X = 1\n"
    bodies = [(s.folder / "submission.py").read_text() for s in found]
    assert bodies == [ONE.partition("\n")[2]] * 3


def test_a_control_has_no_exploit(cheaters: Path, tmp_path: Path) -> None:
    (cheaters / "x.py").write_text(
        '# %% plain\n"""Plain.\n\n---\nstatus: [PASSED]\nwhy: a reason\n"""\n'
    )
    (folder,) = unfold(cheaters / "x.py", tmp_path / "out")
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
    text: str, message: str, cheaters: Path, tmp_path: Path
) -> None:
    before = "# Alike.\n\n# %% b1_good\n" + '"""A.\n---\nstatus: [PASSED]\n"""\n'
    (cheaters / "x.py").write_text(f"{before[:-1]}\n# %% b9_mine\n{text}")
    with pytest.raises(SuiteError, match=message) as caught:
        corpus.load_corpus(tmp_path)
    assert caught.value.hint


ROOT = Path(__file__).resolve().parents[2]
CORPUS = {specimen.name: specimen for specimen in corpus.load_corpus()}
NAMES = ("b11_one_head", "b7_zeros", "eager_chunked")
Runs = list[list[str]]


@pytest.fixture
def corpus_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[Outcome], Runs]]:
    """Runs NAMES where some statuses are given for a run of many, others for a run of one."""

    def run(many: dict[str, Status], one: dict[str, Status]) -> tuple[list[Outcome], Runs]:
        runs: Runs = []

        def run_batch(batch: Sequence[Specimen], machine: Machine, *_: object) -> list[Outcome]:
            runs.append([specimen.name for specimen in batch])
            suite = corpus.suite_for(corpus.get_problem(batch[0].problem), False, batch[0].expect)
            given = many if len(batch) > 1 else one
            return [corpus.judge(s, row(s, given), suite, 0) for s in batch]

        def row(specimen: Specimen, given: dict[str, Status]) -> Result:
            usual = Status.PASSED if specimen.honest else specimen.expect.status[0]
            return result(specimen.name, status=given.get(specimen.name, usual))

        monkeypatch.setattr(plan, "run_batch", run_batch)
        machine = inspect_machine().without_gpu()
        return plan.run_corpus([CORPUS[name] for name in NAMES], machine, 0), runs

    return run


def test_one_run_does_where_memory_sufficed(
    corpus_of: Callable[..., tuple[list[Outcome], Runs]],
) -> None:
    outcomes, runs = corpus_of({}, {})
    assert runs == [list(NAMES)]
    assert [outcome.verdict for outcome in outcomes] == ["stopped", "stopped", "passed"]


@pytest.mark.parametrize("name", ["b11_one_head", "eager_chunked"])
def test_what_found_no_memory_among_others_is_tried_by_itself(
    corpus_of: Callable[..., tuple[list[Outcome], Runs]], name: str
) -> None:
    outcomes, runs = corpus_of({name: Status.OUT_OF_MEMORY}, {})
    assert runs == [list(NAMES), [name]]
    assert all(outcome.ok for outcome in outcomes)
    assert [outcome.specimen.name for outcome in outcomes] == list(NAMES)


def test_its_second_verdict_is_the_one_that_counts(
    corpus_of: Callable[..., tuple[list[Outcome], Runs]],
) -> None:
    name = "b11_one_head"
    outcomes, _ = corpus_of({name: Status.OUT_OF_MEMORY}, {name: Status.PASSED})
    assert outcomes[0].verdict == "accepted"
    outcomes, runs = corpus_of({name: Status.OUT_OF_MEMORY}, {name: Status.OUT_OF_MEMORY})
    assert outcomes[0].verdict == "surprise"
    assert len(runs) == 2


def test_another_failure_is_not_excused(
    corpus_of: Callable[..., tuple[list[Outcome], Runs]],
) -> None:
    outcomes, runs = corpus_of({"b11_one_head": Status.HARNESS_ERROR}, {})
    assert outcomes[0].verdict == "accepted"
    assert runs == [list(NAMES)]


def test_who_must_leave_others_alone_runs_with_them_only() -> None:
    names = ("b7_zeros", "c17_long_names", "b11_one_head")
    found = plan.batches([CORPUS[name] for name in names])
    assert [[s.name for s in batch] for batch in found] == [
        ["b7_zeros", "b11_one_head"],
        ["c17_long_names"],
    ]
    mates = [CORPUS[name] for name in (*names, "c19_circle")]
    assert [s.name for s in plan.batches(mates, together=True)[1]] == [
        "c17_long_names",
        "c19_circle",
    ]


GPU = Machine(gpu="a GPU", sms=1)
GOOD = {"b7_zeros": Status.INCORRECT, "a9_l2_persisting": Status.PASSED}
GOOD |= {"eager_chunked": Status.PASSED, "c17_long_names": Status.PASSED}
GOOD |= {"c17_long_confession": Status.UNSUPPORTED}


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[dict[str, str], list[str]]]:
    """Runs GOOD as on a GPU: verdicts, and the runs in a word each, `?` before one that only checks."""

    def run(checked: dict[str, Status], lost: bool = False) -> tuple[dict[str, str], list[str]]:
        runs: list[str] = []

        def run_batch(
            batch: Sequence[Specimen], *_: object, only_check: bool = False
        ) -> list[Outcome]:
            runs.append("?" * only_check + " ".join(s.name for s in batch))
            suite = corpus.suite_for(corpus.get_problem(batch[0].problem), True, batch[0].expect)
            statuses = GOOD | checked if only_check else GOOD
            rows = {name: result(name, status=status) for name, status in statuses.items()}
            if lost and len(batch) > 1:
                rows["eager_chunked"] = result("eager_chunked", status=Status.HARNESS_ERROR)
            return [
                corpus.beside(
                    corpus.judge(
                        s,
                        None if only_check and status is Status.PASSED else rows[s.name],
                        suite,
                        0,
                    ),
                    rows,
                )
                for s in batch
                for status in [statuses[s.name]]
            ]

        monkeypatch.setattr(plan, "run_batch", run_batch)
        found = plan.run_corpus([CORPUS[name] for name in GOOD], GPU, 2)
        return {o.specimen.name: o.verdict for o in found}, runs

    return run


def test_who_must_fail_a_check_is_not_timed_on_a_gpu(
    on_a_gpu: Callable[..., tuple[dict[str, str], list[str]]],
) -> None:
    verdicts, runs = on_a_gpu({})
    assert runs == [
        "?b7_zeros",
        "a9_l2_persisting eager_chunked",
        "c17_long_names c17_long_confession",
    ]
    assert list(verdicts) == list(GOOD)
    assert set(verdicts.values()) == {"stopped", "passed"}


@pytest.mark.parametrize("status", [Status.PASSED, Status.TIMED_OUT])
def test_who_gets_through_a_check_is_timed_and_that_counts(
    on_a_gpu: Callable[..., tuple[dict[str, str], list[str]]], status: Status
) -> None:
    verdicts, runs = on_a_gpu({"b7_zeros": status})
    assert runs[:2] == ["?b7_zeros", "b7_zeros a9_l2_persisting eager_chunked"]
    assert verdicts["b7_zeros"] == "stopped", "as the run that timed it found"


def test_who_shared_a_neighbour_that_lost_is_tried_by_itself(
    on_a_gpu: Callable[..., tuple[dict[str, str], list[str]]],
) -> None:
    verdicts, runs = on_a_gpu({}, lost=True)
    assert runs[3:] == ["c17_long_names", "c17_long_confession"]
    assert verdicts["c17_long_names"] == verdicts["c17_long_confession"] == "stopped"


def test_only_who_can_end_no_other_way_is_only_checked() -> None:
    early = {name for name, specimen in CORPUS.items() if plan.fails_a_check(specimen)}
    assert {"b7_zeros", "b11_one_head"} <= early
    for name in early:
        expect = CORPUS[name].expect
        assert not CORPUS[name].honest
        assert not {Status.PASSED, Status.TIME_CLAIM_REJECTED, Status.LEFT_WORK_RUNNING} & set(
            expect.status
        )
        assert not (expect.slow or expect.partners or expect.beside or expect.slower_on_hidden)


@pytest.mark.parametrize(
    ("neighbour", "verdict"),
    [(Status.PASSED, "stopped"), (Status.HARNESS_ERROR, "accepted"), (None, "accepted")],
)
def test_a_neighbour_that_loses_its_row_is_a_success_of_the_cheater(
    neighbour: Status | None, verdict: str
) -> None:
    outcome = Outcome(CORPUS["c17_long_names"], None, "stopped", "")
    rows = {"eager_chunked": result("eager_chunked", status=neighbour)} if neighbour else {}
    assert corpus.beside(outcome, rows).verdict == verdict


def test_who_cannot_be_read_is_stopped_if_that_was_foreseen() -> None:
    assert corpus.refusal(CORPUS["c19_circle"], "no YAML").ok
    assert not corpus.refusal(CORPUS["b7_zeros"], "no YAML").ok
    assert not corpus.refusal(CORPUS["eager_chunked"], "no YAML").ok


def test_what_a_lower_level_cannot_show_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def run_batch(batch: Sequence[Specimen], *_: object) -> list[Outcome]:
        tried.extend(specimen.name for specimen in batch)
        return [Outcome(specimen, None, "stopped", "") for specimen in batch]

    monkeypatch.setattr(plan, "run_batch", run_batch)
    pool = [CORPUS["process_pool"], CORPUS["eager_chunked"]]
    for level, names in ((1, ["eager_chunked"]), (2, ["eager_chunked", "process_pool"])):
        tried.clear()
        plan.run_corpus(pool, inspect_machine().without_gpu(), level)
        assert sorted(tried) == names


def reached_for(source: str) -> set[tuple[str, str]]:
    """(module, name) of every `sys.modules["harness.…"].name`, at once or through a variable."""
    tree, modules = ast.parse(source), {}

    def module_of(node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            return modules.get(node.id, "")
        words = ast.unparse(node)
        found = re.fullmatch(r"sys\.modules\['(harness[\w.]*)'\]", words)
        return found[1] if found else ""

    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets, values = node.targets[0], node.value
            pairs = (
                zip(targets.elts, values.elts, strict=True)
                if isinstance(targets, ast.Tuple) and isinstance(values, ast.Tuple)
                else [(targets, values)]
            )
            for target, value in pairs:
                if isinstance(target, ast.Name) and module_of(value):
                    modules[target.id] = module_of(value)
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {(module_of(a.value), a.attr) for a in attributes if module_of(a.value)}


REACHED = {
    name: reached_for((specimen.folder / "submission.py").read_text(encoding="utf-8"))
    for name, specimen in CORPUS.items()
}


def test_some_attacks_reach_into_the_harness() -> None:
    assert ("harness.process.cuda.driver", "wait_for_sequence") in REACHED["a6_done_early"]
    assert sum(map(bool, REACHED.values())) > 5


@pytest.mark.parametrize("name", [name for name, found in REACHED.items() if found])
def test_what_an_attack_reaches_for_is_there(name: str) -> None:
    """Else it ends by an AttributeError, and nothing is shown. Read, not imported: torch need not be here."""
    for module, attribute in REACHED[name]:
        path = ROOT / Path(*module.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        defined = rf"(?:def|class) {attribute}\b|{attribute}\b.*=|    {attribute},$"
        words = rf"^(?:{defined}|(?:from .*)?import .*\b{attribute}\b)"
        assert re.search(words, path.read_text(encoding="utf-8"), re.MULTILINE), (module, attribute)


# --------------------------------------------------------------------------- a run without a defence

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="judge and worker are loaded"
)
EACH = [each for stand_ins in STAND_INS.values() for each in stand_ins]
PROCESSES = ("engine", "judge", "worker")


def _only(*defences: str) -> frozenset[str]:
    return frozenset(defences)


def test_every_defence_has_a_stand_in() -> None:
    assert all(STAND_INS.values())


@needs_torch
@pytest.mark.parametrize("each", EACH, ids=lambda each: each.target)
def test_a_stand_in_is_called_as_the_original(each: StandIn) -> None:
    holder, name = each.holder()
    original = getattr(holder, name)
    made = each.make(original)
    assert made is not original
    wants = inspect.signature(original).parameters.values()
    needs = [p for p in wants if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    takes = inspect.signature(made).parameters.values()
    any_ = any(p.kind is p.VAR_POSITIONAL for p in takes)
    assert any_ or len(needs) <= len(takes) <= len(wants), f"{name}{inspect.signature(made)}"


@needs_torch
@pytest.mark.parametrize("defence", list(STAND_INS))
def test_the_original_is_back_afterwards(defence: str) -> None:
    found = [(*each.holder(), each) for each in STAND_INS[defence]]
    before = [getattr(holder, name) for holder, name, _ in found]
    for process in PROCESSES:
        with standing_in(_only(defence), process):
            there = [getattr(holder, name) for holder, name, _ in found]
            replaced = [now is not then for now, then in zip(there, before, strict=True)]
            assert replaced == [each.process == process for *_, each in found]
    assert [getattr(holder, name) for holder, name, _ in found] == before


def test_judge_and_workers_start_by_themselves_unless_a_stand_in_is_theirs() -> None:
    usual = prestart.JUDGE, forkserver.MODULE
    with without(_only("input_digest")):
        assert prestart.JUDGE[1:] == ("--without", "input_digest", *usual[0])
        assert usual[1] == forkserver.MODULE
    with without(_only("output_copied", "two_clocks")):
        assert usual[0] == prestart.JUDGE
        assert forkserver.MODULE[1:] == ("--without", "output_copied,two_clocks", *usual[1])
    assert usual == (prestart.JUDGE, forkserver.MODULE)


def test_nothing_that_was_started_without_serves_a_run_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[object] = []
    made = iter(range(9))

    def start() -> SimpleNamespace:
        number = next(made)
        return SimpleNamespace(close=lambda: ended.append(number))

    monkeypatch.setattr(prestart, "TrustedProcesses", start)
    prestart.start_next()
    with without(_only("sandbox")):
        assert ended == [0]
        prestart.start_next(2)  # one: unwalled cheaters could reach what waits for the next run
    assert ended == [0, 1]


@needs_torch
def test_the_entry_becomes_the_module_with_its_stand_ins(
    tmp_path: Path, start_run: Callable[..., Any]
) -> None:
    package = tmp_path / "shown" / "judge"
    package.mkdir(parents=True)
    told = "import sys; from harness.judge.burst import same_bits; print(same_bits(1, 2), sys.argv)"
    (package / "__main__.py").write_text(told, encoding="utf-8")
    entry, out = "harness.cli.selftest.stand_ins", tmp_path / "out"
    for word, expected in (("input_digest", "True"), ("two_clocks", "TypeError")):
        words = ["--fd", "7", "--without", word, "shown.judge"]
        code = start_run(words, out, module=entry, path=tmp_path).wait(60)
        assert expected in out.read_text()
        assert code or f"'{package / '__main__.py'}', '--fd', '7'" in out.read_text()


def test_what_is_ablated_together_holds_the_defence_itself() -> None:
    assert all(defence in together for defence, together in TOGETHER.items())
    assert all(stand_ins(together, "engine") for together in TOGETHER.values())


@pytest.mark.parametrize("on_gpu", [False, True])
def test_without_the_two_clocks_every_time_is_believed(on_gpu: bool) -> None:
    """Also one whose first call answers for the others, and whose work goes on behind its calls."""
    told = Sample(block=0, calls_ms=(0.02, 0.001, 0.001), t2_ms=900.0, rest_ms=500.0)
    usual = Sample(block=0, calls_ms=(1.0, 1.0, 1.0), t2_ms=3.01)
    with standing_in(_only("two_clocks"), "engine"):
        checked = check_clocks([told] * 9, [usual] * 9, [], two_clocks.clock_tolerance(on_gpu))
    assert not checked.refusal
    assert not any(sample.late for sample in checked.samples)
    assert check_clocks([told] * 9, [usual] * 9, [], two_clocks.clock_tolerance(on_gpu)).refusal


def test_without_stress_a_run_has_no_probes() -> None:
    suite = load_suite("smoke", ROOT / "configs")
    request: Any = SimpleNamespace(suite=suite, machine=Machine(), sandbox=0)
    with standing_in(_only("stress"), "engine"):
        problem = session.facts_of(request).problem
    asked = problem.probes(suite.cases[0], Claims()), problem.audits(suite.cases[0])
    assert asked == ([], [])
    assert session.facts_of(request).problem.probes(suite.cases[0], Claims())


@pytest.mark.parametrize(
    ("defence", "name", "told"),
    [
        ("class_of_work", "b20_sdpa", {"kernels": ("cudnn_generated_fort_native_sdpa",)}),
        ("likeness", "b20_sdpa_unless_profiled", {"likeness": {"cudnn": 1.0}}),
    ],
)
def test_without_its_class_a_librarys_kernel_is_ranked_among_peoples_own(
    defence: str, name: str, told: dict[str, object]
) -> None:
    specimen, row = CORPUS[name], result(name).model_copy(update=told)
    suite = corpus.suite_for(get_problem(specimen.problem), True, specimen.expect)
    with standing_in(_only(defence), "engine"):
        assert corpus.judge(specimen, row, suite, 0).verdict == "accepted"
    assert corpus.judge(specimen, row, suite, 0).verdict == "stopped"


@needs_torch
@pytest.mark.usefixtures("warm")
def test_without_the_comparison_whoever_writes_into_its_inputs_wins() -> None:
    """One of each kind of process; all others: python run.py selftest --cpu --ablate."""
    names = {"b18_write_into_q", "b18_wrong_dtype", "a11_batch_and_skip", "c18_code_in_build"}
    specimens = [specimen for specimen in corpus.load_corpus() if specimen.name in names]
    found = ablate(specimens, inspect_machine().without_gpu(), usual_level())
    won = {each.name: each.accepted for each in found if each.tried}
    assert won == {
        "burst_mean": ("a11_batch_and_skip",),
        "input_digest": ("b18_write_into_q",),
        "output_type": ("b18_wrong_dtype",),
        "staged_sources": ("c18_code_in_build",),
    }
