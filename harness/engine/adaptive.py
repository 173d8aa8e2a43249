"""Blocks for whom they still tell something: `--race` and `--until` of all cases together.

Every case advances by one block in turn until all have the blocks of the next look; then the rule
(stopping.py) says who is in. The libraries and the null kernel stay to the end, so that every
block is paired and both clocks can be compared in it. Who leaves keeps his samples.

Each look asks anew, of everybody: who was pushed out by one that has failed since, or is slow by
now, is in again, and gets the blocks that it missed.
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from harness.engine.burst import settle
from harness.engine.events import Progress
from harness.engine.run_state import State
from harness.engine.sustain import sustain
from harness.engine.timing import clock_verdict, intervals, repeat_disturbed, run_block
from harness.measure import stopping
from harness.measure.plan import Block, further_block, plan_case
from harness.measure.verdict import class_of
from harness.schema import Case, Kind, Stopping, times_ms


@dataclass
class CaseProgress:
    """One case: what is still planned for it, and how many of its timed blocks are over."""

    case: Case
    planned: list[Block]
    timed: int = 0
    next_index: int = 0  # for blocks beyond the plan


@dataclass
class AdaptiveRun:
    """One adaptive run over all cases."""

    state: State
    lanes: list[CaseProgress] = field(default_factory=list)
    active: set[str] = field(default_factory=set)  # in, and may still be dropped
    left: dict[str, int] = field(default_factory=dict)  # the race → behind so many blocks
    started: float = 0.0

    def __post_init__(self) -> None:
        """Everybody who may run on some case is in."""
        state = self.state
        looks = self.looks
        for case in state.suite.cases:
            if not (names := [name for name in state.workers if state.may_run(name, case)]):
                continue
            soonest = looks[0] if looks[0] < state.suite.blocks else None
            alone = state.facts.tolerance.alone_blocks
            blocks = plan_case(state.suite, case, state.problem, names, state.rng, soonest, alone)
            self.lanes.append(CaseProgress(case, blocks, next_index=state.suite.blocks))
            self.active |= set(names)
        for name in self.active & set(self.shown):
            self._tell(name, "stopped before its end")
        self.active -= set(self.kept)

    @property
    def kept(self) -> tuple[str, ...]:
        """Who runs to the end whatever the data say, each once.

        Clocks are held against the fastest library of the same blocks (verdict.py). cuDNN's gap on
        packed sequences is twice as wide as others': beside it alone nobody would be ranked.
        """
        state, roles = self.state, self.state.roles
        ours = (n for n, each in state.workers.items() if each.entrant.kind is Kind.BASELINE)
        libraries = filter(self._may_run, ours)
        return tuple(dict.fromkeys((roles.baseline, roles.control, roles.null, *libraries)))

    @property
    def running(self) -> list[str]:
        """Who is in the next block."""
        return [*self.active, *self.kept]

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of blocks at which it looks."""
        return self.state.rule.looks(self.state.suite.blocks)

    @property
    def shown(self) -> list[str]:
        """Who gets a row."""
        state = self.state
        return [n for n in state.workers if n not in state.hidden and n != state.roles.null]

    # ------------------------------------------------------------------ the way

    def run(self) -> None:
        """All blocks of all cases; at the end everybody's record says why it ended."""
        settle(self.state)
        self.started, end = time.monotonic(), "measured to the end"
        for number, look in enumerate(self.looks, start=1):
            if not self._advance_to(look):
                end = f"time limit of {self.state.rule.time_limit_s:g} s"
                break
            if whole := look >= self.state.suite.blocks:
                for lane in self.lanes:
                    if lane.next_index == self.state.suite.blocks:
                        lane.next_index += repeat_disturbed(self.state, lane.case, self.running)
            if self.state.rule.race is not None:
                self._race(self.state.rule.race)
            if whole and (self.state.rule.until_pct is None or self._all_decided(number)):
                break
        for name in (*self.active, *self.kept):
            if name in self.shown:
                self._tell(name, end)
        self._tell_neighbours()
        for lane in self.lanes:
            sustain(self.state, lane.case, self.left.keys())

    def _advance_to(self, look: int) -> bool:
        """Give every case `look` timed blocks, one block in turn; False when the time is over."""
        begun, total = time.monotonic(), sum(look - lane.timed for lane in self.lanes)
        for step in range(total):
            lane = min(self.lanes, key=lambda each: each.timed)  # who is behind
            beyond = lane.timed >= self.state.suite.blocks
            if beyond and time.monotonic() - self.started > self.state.rule.time_limit_s:
                return False
            while True:  # the next timed block, and warm-up before it
                if not lane.planned:
                    asked = lane.case, self.state.problem, self.running, self.state.rng
                    lane.planned = [further_block(*asked, lane.next_index)]
                    lane.next_index += 1
                if self._run_next(lane):
                    break
            eta_s = (time.monotonic() - begun) / (step + 1) * (total - step - 1)
            so_far = intervals(self.state, lane.case, sorted(self.active))
            self.state.observer.block(Progress(lane.case.name, lane.timed, look, eta_s, so_far))
        return True

    def _run_next(self, lane: CaseProgress) -> bool:
        """The next planned block, of those who are in; whether it was timed."""
        block = lane.planned.pop(0)
        counts = run_block(self.state, lane.case, block.of(self.running))
        for name in () if counts else block.alone:  # who leaves at the next look has met one
            later = (n for n, b in enumerate(lane.planned) if b.timed and name not in b.alone)
            if (following := next(later, None)) is not None:
                lane.planned[following] = lane.planned[following].asking_alone(name)
        lane.timed += block.timed
        return block.timed

    # ------------------------------------------------------------------ looks

    def _times(self) -> stopping.Times:
        """Scored times of everybody who has not failed and whose clock is believed, on every case.

        One whose clock is not believed must not push others out; it has no figure at the end.
        """
        state = self.state
        found: dict[str, dict[str, dict[int, float]]] = {}
        for lane in self.lanes:
            mine = found.setdefault(lane.case.name, {})
            for name in state.workers:
                if name == state.roles.null or state.record(name, lane.case).status is not None:
                    continue
                checked = clock_verdict(state, name, lane.case)
                if not (checked.refusal or checked.unlike):
                    mine[name] = times_ms(checked.samples)
        return found

    def _race(self, places: int) -> None:
        """Drop the slow; behind the suite's last block who is in has all that it missed."""
        blocks, caught = self.state.suite.blocks, set[str]()
        self._drop(places)
        while self.lanes[0].timed >= blocks:
            behind = {name for name in self.active if self._fewest(name) < blocks} - caught
            if not behind:
                return
            missed = blocks - min(map(self._fewest, behind))
            look, voided = self.lanes[0].timed, self._voided()
            for lane in self.lanes:
                lane.timed -= missed
            self._advance_to(look)
            # of what a rival disturbed nobody has caught up; strikes are numbered, so it ends
            caught |= behind if self._voided() == voided else set()
            self._drop(places)

    def _drop(self, places: int) -> None:
        """Who is clearly slower than the last place raced for is out; all others are in."""
        state = self.state
        every = [n for n in self.shown if state.workers[n].entrant.kind is Kind.SUBMISSION]
        level = stopping.race_level(places, len(every), len(self.looks))
        times, raced = self._times(), set(self.shown) - set(self.kept)
        ranking = stopping.order(times, raced, state.roles.baseline)
        out: dict[str, str] = {}
        for alike in self._alike(ranking):
            out |= stopping.losses(times, alike, places, level)
        # blocks that a rival disturbed do not count: nobody leaves by what is left of them
        out = {n: why for n, why in out.items() if self._fewest(n) >= stopping.FEWEST_BLOCKS}
        lost = {n for n in raced for lane in self.lanes if not state.may_run(n, lane.case)}
        out |= dict.fromkeys(lost, "it has no time on every config")
        look = min(lane.timed for lane in self.lanes)
        self.left, self.active = {n: self.left.get(n, look) for n in out}, raced - set(out)
        for name, why in out.items():
            self._tell(name, f"left the race after {self.left[name]} blocks: {why}")
        state.observer.note(f"race: after {look} blocks {len(out)} out, {len(self.active)} in")

    def _fewest(self, name: str) -> int:
        """So many timed blocks it has of each case."""
        return min(len(self.state.record(name, lane.case).samples) for lane in self.lanes)

    def _may_run(self, name: str) -> bool:
        return any(self.state.may_run(name, lane.case) for lane in self.lanes)

    def _voided(self) -> int:
        """So many blocks of all cases do not count, by what somebody in the run did."""
        return sum(self.state.woken.values())

    def _alike(self, ranking: Sequence[str]) -> Iterator[list[str]]:
        """Those of `ranking` who do exact, then those who do approximate work: ranked apart."""
        for rough in (False, True):
            yield [name for name in ranking if self._approximate(name) == rough]

    def _approximate(self, name: str) -> bool:
        evidence = (self.state.record(name, lane.case) for lane in self.lanes)
        return any(class_of(known, self.state.facts) == "approximate" for known in evidence)

    def _all_decided(self, number: int) -> bool:
        """Keep in only who is in an open pair; True when nobody is."""
        state, until_pct = self.state, self.state.rule.until_pct
        assert until_pct is not None
        judged = {*state.submissions()}  # nobody waits for what lies between two libraries
        pairs = (pair for pair in self._pairs() if judged & {pair.faster, pair.slower})
        open_ = [pair for pair in pairs if pair.word(until_pct) == "open"]
        still = {name for pair in open_ for name in (pair.faster, pair.slower)}
        for name in filter(self._may_run, self.active - still):
            self._tell(name, "told apart from its neighbours, or equal to them")
        # who left may come back: a later look can show other neighbours
        self.active = still - set(self.kept)
        words = "; ".join(f"{p.faster} and {p.slower}" for p in open_[:3])
        words += f" and {len(open_) - 3} more pairs" if len(open_) > 3 else ""
        said = f"open: {words}" if open_ else "every pair of neighbours is decided"
        state.observer.note(f"look {number} of {len(self.looks)}: {said}")
        return not open_

    def _pairs(self) -> list[stopping.Pair]:
        """Neighbours among those who are raced and ranked to the end."""
        times, level = self._times(), stopping.level_of(len(self.looks))
        still = set(self.shown) - set(self.left)
        ranking = stopping.order(times, still, self.state.roles.baseline)
        each = (stopping.neighbours(times, alike, level) for alike in self._alike(ranking))
        return list(itertools.chain.from_iterable(each))

    # ------------------------------------------------------------------ words

    def _tell(self, name: str, why: str) -> None:
        ending = Stopping(rule=self.state.rule.name, looks=len(self.looks), why=why)
        for lane in self.lanes:
            self.state.record(name, lane.case).stopping = ending

    def _tell_neighbours(self) -> None:
        """What is known of each pair, in the record of the slower one."""
        if (until_pct := self.state.rule.until_pct) is None:
            return
        words = {
            "apart": "apart from",
            "equal": f"equal within {until_pct:g} % to",
            "open": "open with",
        }
        for pair in self._pairs():
            word = words[pair.word(until_pct)]
            known = self.state.record(pair.slower, self.lanes[0].case).stopping
            self._tell(pair.slower, f"{known.why if known else ''}; {word} {pair.faster}")
