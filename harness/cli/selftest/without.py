"""A run without some of its defences: here by stand-ins, in judge and workers by another entry.

    python -m harness.cli.selftest.without --without input_digest harness.judge --fd 7

puts the stand-ins of the judge in place, then runs the module behind them as if it had been started
by itself. Nothing else than `without` below starts one: what runs otherwise holds no word of it.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
from collections.abc import Iterator

from harness.cli.selftest.stand_ins import Defences, from_word, stand_ins, standing_in, to_word
from harness.process import forkserver, prestart

FLAG = "--without"


@contextlib.contextmanager
def without(defences: Defences) -> Iterator[None]:
    """Every run that begins in here lacks `defences`; none of its processes serves another run."""
    prestart.end_waiting()
    judge, workers, start_next = prestart.JUDGE, forkserver.MODULE, prestart.start_next
    with standing_in(defences, "engine"):
        prestart.JUDGE = _entry(judge, defences, "judge")
        forkserver.MODULE = _entry(workers, defences, "worker")
        prestart.start_next = lambda runs=1: start_next()
        try:
            yield
        finally:
            prestart.JUDGE, forkserver.MODULE = judge, workers
            prestart.start_next = start_next
            prestart.end_waiting()


def _entry(words: tuple[str, ...], defences: Defences, process: str) -> tuple[str, ...]:
    """The words that start `words` without what of `defences` is this process's."""
    if not stand_ins(defences, process):
        return words
    return (__name__, FLAG, to_word(defences), *words)


def main() -> None:
    """Put the stand-ins in place for good, become the module that is named."""
    at = sys.argv.index(FLAG)
    _, word, module = sys.argv[at : at + 3]
    del sys.argv[at : at + 3]
    process = module.split(".")[1]
    with standing_in(from_word(word), process):
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
