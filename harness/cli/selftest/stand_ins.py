"""The defences by name, and what stands in for each while it is ablated: a weaker function.

Each stops at least one cheater of tests/corpus/cheaters. Nothing of what a run consists of knows
these names: `selftest --ablate` puts other functions in place of a defence's own from outside. A
stand-in is made from the original, so it changes one thing and does the rest as ever. The modules
of judge and worker are named by strings: this file is loaded where there is no torch.

    python -m harness.cli.selftest.stand_ins --without input_digest harness.judge --fd 7

puts the stand-ins of the judge in place, then runs the module behind them as if it had been started
by itself. Nothing else than `without` below starts one: what runs otherwise holds no word of it.
"""

import contextlib
import copy
import math
import os
import pkgutil
import runpy
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from harness.process import forkserver, prestart

FLAG = "--without"
Defences = frozenset[str]  # names of STAND_INS
ADAPTIVE_BUDGET_S = 0.5  # of a loop that stops when its time is up
LATE_COPY_S = 0.5
USUAL = {"distribution": "normal"}


@dataclass(frozen=True)
class StandIn:
    """In place of `target`, `room.module:name` or `…:Class.name`, stands `make(the original)`."""

    target: str
    make: Callable[[Any], Any]

    @property
    def process(self) -> str:
        """Whose memory it belongs into: `judge`, `worker` or, for all else, `engine`."""
        room = self.target.split(".")[0]
        return room if room in ("judge", "worker") else "engine"

    def holder(self) -> tuple[Any, str]:
        """The module or class that has the target, and what it calls it."""
        module, _, path = self.target.partition(":")
        *classes, name = path.split(".")
        return pkgutil.resolve_name(f"harness.{module}:{'.'.join(classes)}"), name


@contextlib.contextmanager
def standing_in(defences: Defences, process: str) -> Iterator[None]:
    """Have the stand-ins of `defences` that belong to this `process` in place."""
    with contextlib.ExitStack() as stack:
        for each in stand_ins(defences, process):
            holder, name = each.holder()
            made = each.make(getattr(holder, name))
            stack.enter_context(patch.object(holder, name, made))
        yield


def stand_ins(defences: Defences, process: str) -> list[StandIn]:
    """Those of `defences` in one kind of process."""
    return [each for d in sorted(defences) for each in STAND_INS[d] if each.process == process]


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda original: lambda *args, **kwargs: value


def _only_checks(verify: Any, link: Any, inputs: Any, *rest: Any) -> Any:
    return verify(link, inputs if inputs.whole else replace(inputs, references=[]), *rest)


def _blind_to_nan(error_of: Any, out: Any, reference: Any) -> Any:
    found = error_of(out, reference)
    max_diff = 0.0 if math.isnan(found.max_diff) else found.max_diff
    return found.model_copy(update={"finite": True, "max_diff": max_diff})


def _without_probes(get_problem: Any, name: str) -> Any:
    problem = copy.copy(get_problem(name))
    problem.probes = problem.audits = lambda *_: []
    return problem


def _late_copies(worker: Any) -> Any:
    """A worker that looks at what its calls returned when all is over."""

    class Late(worker):  # type: ignore[misc]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.late: list[tuple[Any, ...]] = []

        def _keep(self, result: Any, index: int, *ring: Any) -> None:
            self.late.append((result, index, *ring))

        def _kept(self, turn: int) -> None:
            late, self.late = self.late, []
            if late:
                time.sleep(LATE_COPY_S)
            for each in late:
                super()._keep(*each)
            super()._kept(turn)

    return Late


def _unlimited(clock_tolerance: Any, on_gpu: bool) -> Any:
    """All that a claimed time is held to, off: how long, how even, what comes behind the calls."""
    names = ("burst_floor_ms", "mean_floor_ms", "alone_floor_ms", "rest_ms")
    floors = dict.fromkeys(names, math.inf)
    return replace(clock_tolerance(on_gpu), call_share=0.0, **floors)


class _Hurried(list[Any]):
    """Blocks that end when their time is up, not when all are done."""

    def __iter__(self) -> Iterator[Any]:
        started, timed = time.monotonic(), 0
        for block in super().__iter__():
            yield block
            timed += block.timed
            if timed and time.monotonic() - started > ADAPTIVE_BUDGET_S:
                return


def _good_exit(reap: Any, worker: Any, *rest: Any) -> Any:
    """A process that ended with code 0 has passed."""
    found = reap(worker, *rest)
    ended = worker.child.ending(0.0) == "exited with code 0"
    return found.model_copy(update={"status": type(found.status)("PASSED")}) if ended else found


def _around(place: str, other: Callable[..., Any]) -> StandIn:
    """`other`, told what stood there, then what that would be told."""
    return StandIn(place, lambda original: lambda *to, **how: other(original, *to, **how))


def _by(place: str, other: Callable[..., Any]) -> StandIn:
    """It, whatever stood there."""
    return StandIn(place, lambda original: other)


#: Defence, a thing that stops somebody whom nothing else stops → what is put in its place.
STAND_INS: dict[str, tuple[StandIn, ...]] = {
    # no value is seen twice, seeds are secret
    "fresh_inputs": (
        StandIn("judge.secret:Secret.seed", _always(0)),
        _around("judge.judge:Judge._inputs", lambda draw, judge, to: draw(judge, to | USUAL)),
    ),
    # no two entrants are asked the same
    "own_inputs": (
        _by("engine.burst:own_label", lambda state, name, question: question.label),
        # in turn: who copies an answer needs somebody before it who has worked it out
        _by("measure.plan:shuffled", lambda names, rng: tuple(sorted(names))),
    ),
    # also while the clock runs
    "verify_every_call": (_around("judge.burst:WorkerLink._verify", _only_checks),),
    # max|diff| against SDPA
    "contract": (StandIn("judge.burst:differs", _always(False)),),
    # L2 against float64 decides the class
    "relative_error": (StandIn("measure.verdict:class_of", _always("exact")),),
    # NaN and infinity are asked for by name
    "finite": (_around("judge.burst:error_of", _blind_to_nan),),
    # odd arguments, lengths and values
    "stress": (_around("measure.verdict:get_problem", _without_probes),),
    # inputs are compared after the burst
    "input_digest": (StandIn("judge.burst:same_bits", _always(True)),),
    # a plain tensor of the right shape, dtype and device
    "output_type": (StandIn("worker.__main__:require_output", _always(None)),),
    # fixed right behind the calls, on their stream
    "output_copied": (StandIn("worker.__main__:Worker", _late_copies),),
    # words of it are read first, and what is copied must agree
    "output_sampled": (StandIn("judge.sampled:Sampled.differing", _always(None)),),
    # the worker's times against the judge's
    "two_clocks": (_around("measure.two_clocks:clock_tolerance", _unlimited),),
    # nobody's kernels run in another's turn
    "quiet_gpu": (_around("engine.session:Quiet", lambda quiet, monitor, note: quiet(None, note)),),
    # whose kernels ran decides who may be ranked beside whom
    "class_of_work": (StandIn("board.rivals:classify", _always("custom")),),
    # results of timed calls beside those of PyTorch's kernels
    "likeness": (StandIn("board.rivals:same_bits_as", _always("")),),
    # drawn from the run's secret, and told where they are slower
    "hidden_shapes": (StandIn("board.rivals:told_of", _always(frozenset())),),
    # the mean of a burst, not its best call
    "burst_mean": (_by("measure.verdict:score_ms", lambda sample: min(sample.calls_ms)),),
    # slow entrants get as many samples as fast ones
    "fixed_counts": (
        _around("engine.timing:plan_case", lambda plan, *to, **how: _Hurried(plan(*to, **how))),
    ),
    # a worker cannot say PASSED
    "strict_wire": (_by("judge.burst:confesses", lambda reply: reply.status is not None),),
    # an exit code is not evidence
    "missing_is_failure": (
        _around("engine.processes.worker_process:WorkerProcess.reap", _good_exit),
    ),
    # Landlock, seccomp, capabilities, limits
    "sandbox": (
        _around(
            "cli.selftest.corpus:execute",
            lambda execute, asked, *rest: execute(replace(asked, sandbox=0), *rest),
        ),
    ),
    # allow-listed variables
    "clean_environment": (
        _around("process.child:untrusted_env", lambda env, jail: {**os.environ, **env(jail)}),
    ),
    # daemons end with the turn
    "orphan_sweep": (StandIn("engine.session:sweep", _always(None)),),
    # the hashed bytes and nothing else
    "staged_sources": (
        _by("engine.assign_roles:stage", lambda one, to: shutil.copytree(one.folder, to)),
        StandIn("engine.processes.worker_process:holds", _always(True)),
    ),
    # bytes and files of cache and scratch
    "quota": (StandIn("engine.guards.resource_watch:ResourceWatch.hoard", _always(None)),),
    # wall-clock of an entrant's turns together
    "budget": (
        StandIn("engine.guards.budget:Budget.overdrawn", _always("")),
        _by("engine.guards.budget:Budget.deadline_s", lambda budget, name, timeout_s: timeout_s),
    ),
}


# --------------------------------------------------------------------------- a run without them


@contextlib.contextmanager
def without(defences: Defences) -> Iterator[None]:
    """Every run that begins in here lacks `defences`; none of its processes serves another run."""
    prestart.end_waiting()
    judge = _entry(prestart.JUDGE, defences, "judge")
    workers = _entry(forkserver.MODULE, defences, "worker")
    start_next = prestart.start_next
    with standing_in(defences, "engine"), contextlib.ExitStack() as stack:
        stack.callback(prestart.end_waiting)
        stack.enter_context(patch.object(prestart, "JUDGE", judge))
        stack.enter_context(patch.object(forkserver, "MODULE", workers))
        stack.enter_context(patch.object(prestart, "start_next", lambda runs=1: start_next()))
        yield


def _entry(words: tuple[str, ...], defences: Defences, process: str) -> tuple[str, ...]:
    """The words that start `words` without what of `defences` is this process's."""
    if not stand_ins(defences, process):
        return words
    return (__name__, FLAG, ",".join(sorted(defences)), *words)


def main() -> None:
    """Put the stand-ins in place for good, become the module that is named."""
    at = sys.argv.index(FLAG)
    _, word, module = sys.argv[at : at + 3]
    del sys.argv[at : at + 3]
    with standing_in(frozenset(word.split(",")), module.split(".")[1]):
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
