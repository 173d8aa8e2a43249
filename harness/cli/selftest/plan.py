"""The whole corpus in as few runs as show the same: who shares one, who is checked only.

On a GPU a run costs ten seconds beside what its entrants take. So who must fail a check is only
checked there, many to a run, and who must leave its neighbours alone shares them with others of its
kind. Neither is an excuse: whoever does not end as foreseen so is tried again, timed or by itself,
and what comes of that counts.

Ablation: each defence is switched off in turn, to see which attacks then win.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.cli.selftest.corpus import Outcome, Specimen, run_batch, runs_on
from harness.cli.selftest.stand_ins import STAND_INS, Defences, without
from harness.schema import Machine, Result, Status

BATCH = 12  # entrants of one run: their processes must fit into memory
CHECKED = 32  # of a run that only checks: who fails has left when the next one begins
#: How a check ends who fails it; all else takes a clock, a deadline or a neighbour.
IN_A_CHECK = frozenset(
    {Status.INCORRECT, Status.NONFINITE, Status.BAD_OUTPUT, Status.INPUT_MUTATED, Status.CRASHED}
    | {Status.IMPORT_ERROR, Status.COMPILE_ERROR, Status.INVALID_SUBMISSION}
    | {Status.OUT_OF_MEMORY, Status.OVER_QUOTA}
)


def run_corpus(
    specimens: Sequence[Specimen],
    machine: Machine,
    level: int,
    show: Callable[[Outcome], None] = lambda outcome: None,
    size: int = BATCH,
    row: Callable[[Result], None] = lambda result: None,
) -> list[Outcome]:
    """Try all `specimens` that this machine can run; again alone what found no memory."""
    able = [s for s in specimens if runs_on(s, machine) and s.expect.level <= level]
    found: dict[str, Outcome] = {}
    for batch in batches([s for s in able if machine.has_gpu and fails_a_check(s)], CHECKED):
        for outcome in run_batch(batch, machine, level, row, only_check=True):
            if outcome.ok:
                found[outcome.specimen.name] = outcome
                show(outcome)
    for batch in batches([s for s in able if s.name not in found], size, together=machine.has_gpu):
        for first in run_batch(batch, machine, level, row):
            again = len(batch) > 1 and not first.ok and alone_counts(first)
            last = run_batch([first.specimen], machine, level, row)[0] if again else first
            found[last.specimen.name] = last
            show(last)
    return [found[s.name] for s in able]


def batches(
    specimens: Sequence[Specimen], size: int = BATCH, together: bool = False
) -> list[list[Specimen]]:
    """Specimens that may share a run: one problem, type, shape, kind of deadline, not too many.

    Who must leave its neighbours alone has a run with these only, or `together` with others of its
    kind.
    """
    groups: dict[tuple[object, ...], list[Specimen]] = {}
    for specimen in specimens:
        expect = specimen.expect
        alone = specimen.name if expect.beside and not together else expect.beside
        shape = (specimen.problem, expect.dtype, expect.axes, expect.slower_on_hidden)
        groups.setdefault((*shape, expect.slow, alone), []).append(specimen)
    return [group[i : i + size] for group in groups.values() for i in range(0, len(group), size)]


def fails_a_check(specimen: Specimen) -> bool:
    """Whether every way in which it may end is one of a check."""
    expect = specimen.expect
    takes_more = expect.slow or expect.slower_on_hidden or expect.partners or expect.beside
    return not (specimen.honest or takes_more) and set(expect.status) <= IN_A_CHECK


def alone_counts(outcome: Outcome) -> bool:
    """Whether others of its run may be why it did not end as foreseen.

    Memory that ran out where that was not foreseen may be a rival's, and a neighbour that lost its
    row may have lost it to another one.
    """
    result = outcome.result
    crowded_out = result is not None and result.status is Status.OUT_OF_MEMORY
    return crowded_out or bool(outcome.specimen.expect.beside)


@dataclass(frozen=True)
class Ablation:
    """One set of defences switched off, and who came through then."""

    name: str
    tried: tuple[str, ...]
    accepted: tuple[str, ...]


#: Where one defence backs another, both must go before a cheater wins.
TOGETHER: dict[str, Defences] = {
    "output_copied": frozenset({"output_copied", "two_clocks"}),
    "output_sampled": frozenset({"output_sampled", "two_clocks"}),
    "own_inputs": frozenset({"own_inputs", "sandbox", "two_clocks"}),
    "orphan_sweep": frozenset({"orphan_sweep", "sandbox"}),  # namespaces end all
}


def ablate(
    specimens: Sequence[Specimen],
    machine: Machine,
    level: int,
    show: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Ablation]:
    """Switch each defence off in turn and run the cheaters that name it."""
    found = []
    for defence in STAND_INS:
        mine = [s for s in specimens if s.expect.defence == defence and not s.honest]
        if not (able := [s for s in mine if runs_on(s, machine)]):
            found.append(Ablation(defence, (), ()))
            continue
        off = TOGETHER.get(defence, frozenset({defence}))
        with without(off):
            outcomes = run_corpus(able, machine, level, show)
        accepted = tuple(o.specimen.name for o in outcomes if o.verdict == "accepted")
        found.append(Ablation("+".join(sorted(off)), tuple(s.name for s in able), accepted))
    return found
