"""Is it right? All of the float64 reference on the timed shape, then the probes of its claims."""

from collections.abc import Sequence

from harness.engine.burst import Question, draw_ahead, run_burst
from harness.engine.run_state import State
from harness.measure.verdict import Evidence
from harness.problems.base import Probe
from harness.process.messages import BurstReport
from harness.schema import Case, Claims, Dtype, Kind, Status


def check_cases(state: State, cases: Sequence[Case], probes: bool = True) -> None:
    """Every case for the submissions, then for the baselines: an author waits for nobody.

    probes: what the claims invite near each case, too.
    """
    for name in state.submissions():
        state.observer.stage(name, "check")
    for case in cases:
        _check(state, case, Kind.SUBMISSION, probes)
        state.checked.add(case.name)
        if state.failed_fast():
            return
    for case in () if state.only_check else cases:
        if not state.nobody_left(case):
            _check(state, case, Kind.BASELINE, probes)


def ask_ahead(state: State) -> None:
    """What the first submission is asked first is worked out while its kernel is compiled."""
    case = state.suite.cases[0]
    if name := next(iter(_names(state, case, Kind.SUBMISSION)), ""):
        draw_ahead(state, name, _main_question(state, case, Kind.SUBMISSION))


def _names(state: State, case: Case, kind: Kind) -> list[str]:
    alike = (name for name, worker in state.workers.items() if worker.entrant.kind is kind)
    return [name for name in alike if name != state.roles.null and state.may_run(name, case)]


def _main_question(state: State, case: Case, kind: Kind) -> Question:
    """The timed shape, with all of each output compared."""
    probe = Probe(case, "normal", state.problem.kwargs(case))
    return Question(probe, f"check/{case.name}/{kind.value}", case.burst, whole=True)


def _check(state: State, case: Case, kind: Kind, probes: bool) -> None:
    """The timed shape, then the probes that each claim invites, equal claims on the same probes."""
    names = _names(state, case, kind)
    _verified_burst(state, case, _main_question(state, case, kind), names)
    groups: dict[Claims, list[str]] = {}
    for name in names:
        groups.setdefault(state.workers[name].entrant.manifest.claims, []).append(name)
    for claims, group in groups.items():
        for number, probe in enumerate(state.problem.probes(case, claims) if probes else []):
            label = f"probe/{case.name}/{kind.value}/{number}"
            question = Question(probe, label, probe.case.burst, whole=True)
            _verified_burst(state, case, question, _to_ask(state, case, probe, group))
        for name in group:
            known = state.record(name, case)
            known.lse = probes and claims.lse and state.problem.gives_lse
            state.observer.check(name, case.name, known.status or Status.PASSED, known.reason)


def _to_ask(state: State, case: Case, probe: Probe, names: Sequence[str]) -> list[str]:
    """Who has not answered this probe near another case yet: a grid's lengths share most of them.

    An answer that was right is evidence for this case, too; a wrong one is asked for again.
    """
    asked = []
    for name in names:
        if (name, probe.question) not in state.answered:
            asked.append(name)
        elif error := state.answered[name, probe.question]:
            state.record(name, case).saw(error)
    return asked


def _fail(state: State, known: Evidence, reply: BurstReport, probe: Probe) -> None:
    """As told; the first counts: Triton's interpreter takes the bits of bf16 for whole numbers."""
    bf16 = probe.case.dtype is Dtype.BF16 and known.entrant.manifest.language == "triton"
    wrong = reply.status in {Status.INCORRECT, Status.NONFINITE}
    if wrong and bf16 and not state.facts.machine.has_gpu:
        known.fail(Status.UNSUPPORTED, "Triton's interpreter computes no bf16: ask a GPU")
    known.fail(reply.status, f"{reply.message} ({probe.label})", reply.mismatch)


def _verified_burst(state: State, case: Case, question: Question, names: Sequence[str]) -> None:
    probe = question.probe
    for name in [name for name in names if state.record(name, case).status is None]:
        if (reply := run_burst(state, name, question, state.limits.first_call_s)) is None:
            continue
        known = state.record(name, case)
        if reply.status is not Status.PASSED:
            _fail(state, known, reply, probe)
            continue
        state.answered[name, probe.question] = reply.error
        if reply.error:
            known.saw(reply.error)
        if reply.deterministic is not None:  # other bits once are other bits
            known.deterministic = reply.deterministic and known.deterministic is not False
