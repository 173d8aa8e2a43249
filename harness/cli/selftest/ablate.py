"""Each defence switched off in turn: which attacks then win."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.cli.selftest.corpus import Outcome, Specimen, runs_on
from harness.cli.selftest.defence import Defence, Defences, to_word
from harness.cli.selftest.plan import run_corpus
from harness.cli.selftest.without import without
from harness.schema import Machine


@dataclass(frozen=True)
class Ablation:
    """One set of defences switched off, and who came through then."""

    name: str
    tried: tuple[str, ...]
    accepted: tuple[str, ...]


#: Where one defence backs another, both must go before a cheater wins.
TOGETHER: dict[Defence, Defences] = {
    Defence.OUTPUT_COPIED: frozenset({Defence.OUTPUT_COPIED, Defence.TWO_CLOCKS}),
    Defence.OWN_INPUTS: frozenset({Defence.OWN_INPUTS, Defence.SANDBOX}),
    Defence.ORPHAN_SWEEP: frozenset({Defence.ORPHAN_SWEEP, Defence.SANDBOX}),  # namespaces end all
}


def ablate(
    specimens: Sequence[Specimen],
    machine: Machine,
    level: int,
    show: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Ablation]:
    """Switch each defence off in turn and run the cheaters that name it."""
    found = []
    for defence in Defence:
        mine = [s for s in specimens if s.expect.defence == defence.value and not s.honest]
        able = [s for s in mine if runs_on(s, machine)]
        if not able:
            found.append(Ablation(defence.value, (), ()))
            continue
        off = TOGETHER.get(defence, frozenset({defence}))
        with without(off):
            outcomes = run_corpus(able, machine, level, show)
        accepted = tuple(o.specimen.name for o in outcomes if o.verdict == "accepted")
        names = to_word(off).replace(",", "+")
        found.append(Ablation(names, tuple(s.name for s in able), accepted))
    return found
