"""No two calls of a stretch have the same inputs, and every window lies inside its run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.process.cuda.arena_layout import ALIGN, aligned
from harness.process.cuda.windows import runs, windows

MIB = 1 << 20
sizes = st.lists(st.integers(1, 9 * ALIGN), min_size=1, max_size=6)


@given(sizes, st.data(), st.integers(1, 6), st.integers(0, 2**62))
def test_every_window_lies_inside_its_run_and_runs_never_overlap(
    each: list[int], data: st.DataObject, tensors: int, seed: int
) -> None:
    alone = [data.draw(st.booleans()) for _ in each]
    placed = runs(each, alone, tensors)
    ends = [0] + [run.end for run in placed]
    assert all(run.start >= end and run.start % ALIGN == 0 for run, end in zip(placed, ends))  # noqa: B905 - one end more
    assert ends[-1] <= tensors * sum(map(aligned, each))  # fits where a burst's inputs fit
    for begins in windows(placed, 20, seed):
        for run, begin in zip(placed, begins, strict=True):
            assert 0 <= begin <= run.end - run.start - run.size
            assert begin % ALIGN == 0


def test_both_sides_find_the_same_and_another_seed_gives_others() -> None:
    placed = runs([MIB] * 3, [True] * 3, 4)
    first, again, other = (list(windows(placed, 50, seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_thousands_of_calls_never_meet_the_same_two_arguments_again() -> None:
    """hdim256_seq16k: six tensors of 64 MiB each; who has k's place beside q's has 400,000 to choose from."""
    found = list(windows(runs([64 * MIB] * 3, [True] * 3, 6), 1500, 7))
    assert len({(q, k) for q, k, _ in found}) == len(found)
    assert len({q - k for q, k, _ in found}) > 0.99 * len(found)


def test_what_belongs_together_moves_together() -> None:
    """The backward's q, k, v, o and lse are of one forward; do is anybody's."""
    placed = runs([MIB, MIB // 64, MIB], [False, False, True], 3)
    begins = list(windows(placed, 60, 3))
    assert {(q // MIB, lse * 64 // MIB) for q, lse, _ in begins} == {(0, 0), (1, 1), (2, 2)}
    assert len({do for *_, do in begins}) > 50
