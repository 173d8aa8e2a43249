"""rank: who is compared with whom, who shares a place, and who is not ranked at all."""

from __future__ import annotations

import math
import random

import pytest

from harness.board import rank
from harness.board.rank import Board, by_todays_rule, leaderboard
from harness.board.record import NO_VERDICT, newest
from harness.board.rivals import direct_on
from harness.measure import stats
from harness.measure.stats import Interval
from harness.schema import Kind, Result, Speedup, Status, Stopping, Suite
from tests.board.factory import CASES, CPU, H200, result, run_of, timed


def only(results: list) -> Board:
    (board,) = leaderboard(results).boards
    return board


def places(board: Board) -> list[tuple[str, int | None, bool]]:
    return [(row.entry, row.rank, row.tie) for row in board.rows]


def told(value: float, half: float = 0.001, against: str = "sdpa_cudnn") -> Speedup:
    return Speedup(against=against, value=value, low=value - half, high=value + half)


def three(entry: str, value: float, half: float = 0.001, **changes: object) -> list:
    return [result(entry, c, speedup=told(value, half), **changes) for c in CASES]


def test_the_fastest_comes_first_and_the_headline_is_one() -> None:
    board = only(run_of({"fast": 0.8, "slow": 1.3}))
    assert places(board) == [("fast", 1, False), ("sdpa_cudnn", 2, False), ("slow", 3, False)]
    headline = board.exact[1]
    assert headline.speedup == rank.Interval(1, 1, 1)
    assert board.exact[0].speedup.value == pytest.approx(1.25, rel=0.01)
    assert board.headline == "sdpa_cudnn"


def test_configs_stand_in_order_of_their_size() -> None:
    assert only(run_of({"a": 1.0})).configs == tuple(CASES)


def test_any_order_of_lines_gives_the_same_board() -> None:
    results = run_of({"a": 0.9, "b": 0.9, "c": 1.2}) + run_of({"a": 0.8}, seed=2, run="r2")
    first = leaderboard(results)
    for seed in range(5):
        shuffled = random.Random(seed).sample(results, len(results))
        assert leaderboard(shuffled) == first


def test_the_same_kernel_twice_shares_a_place() -> None:
    board = only(run_of({"a": 0.9, "a_again": 0.9, "slow": 1.2}, seed=4))
    assert [(row.rank, row.tie) for row in board.exact[:2]] == [(1, True), (1, True)]
    assert places(board)[2:] == [("sdpa_cudnn", 3, False), ("slow", 4, False)]


def test_side_by_side_a_small_difference_is_enough() -> None:
    """Both intervals against the baseline overlap; their own paired ratio tells them apart."""
    results = []
    for config in CASES:
        a, b, base = ({}, {}, {})
        for block in range(20):
            wobble = 1 + 0.02 * math.sin(block)  # hits a and b alike, not the baseline
            a[block], b[block], base[block] = 0.900 * wobble, 0.909 * wobble, 1.0
        for name, mine in (("a", a), ("b", b), ("sdpa_cudnn", base)):
            results.append(timed(name, config, Kind.SUBMISSION, mine, base))
    board = only(results)
    first, second = board.exact[:2]
    assert first.speedup.low <= second.speedup.high  # the slower's, so they overlap
    assert (first.rank, second.rank) == (1, 2)
    apart = [on_another_card(one) if one.entry == "b" else one for one in results]
    first, second = only(apart).exact[:2]
    assert (first.rank, second.rank) == (1, 1)
    far = [one for one in apart if one.entry != "b"]
    far += [on_another_card(one) for one in run_of({"b": 0.96}) if one.entry == "b"]
    assert [row.rank for row in only(far).exact[:2]] == [1, 2]  # more than cards differ


def on_another_card(one: Result) -> Result:
    other = one.machine.model_copy(update={"uuid": "GPU-1"})
    return one.model_copy(update={"run": "r2", "machine": other})


def test_intervals_of_an_older_rule_are_made_anew_from_the_samples() -> None:
    results = run_of({"mine": 0.9})
    today = {one.config: one for one in results if one.entry == "mine"}
    bases = {one.config: one for one in results if one.entry == "sdpa_cudnn"}
    for config, one in today.items():
        assert one.speedup is not None
        narrow = one.speedup.model_copy(update={"low": one.speedup.value, "rule": 0})
        old = one.model_copy(update={"speedup": narrow})
        assert by_todays_rule(old, bases[config]).speedup == one.speedup.model_copy(
            update={"rule": stats.INTERVAL_RULE}
        )
        assert by_todays_rule(old, None) is old  # its baseline's samples are gone
        assert by_todays_rule(one.model_copy(update={"speedup": None}), None).speedup is None


def test_a_chain_of_overlaps_is_not_one_great_tie() -> None:
    results = three("a", 1.30, 0.03) + three("b", 1.28, 0.03) + three("c", 1.24, 0.03)
    results = [r.model_copy(update={"run": r.entry}) for r in results]
    board = only(results)
    assert places(board) == [("a", 1, True), ("b", 1, True), ("c", 3, False)]


def test_who_is_too_noisy_to_be_told_apart_lends_its_place_to_nobody() -> None:
    """One wide interval at the top made the whole board `1=`, whatever the others were apart."""
    wide = [result("copy", c, speedup=told(1.302).model_copy(update={"low": 0.9})) for c in CASES]
    results = wide + three("a", 1.3) + three("b", 1.2) + three("c", 1.1)
    board = only([r.model_copy(update={"run": r.entry}) for r in results])
    assert places(board) == [("copy", 1, True), ("a", 1, True), ("b", 3, False), ("c", 4, False)]


@pytest.mark.parametrize(
    ("second", "older", "tied"),
    [
        (1.308, Interval(1, 0.99, 1.01), True),
        (1.308, Interval(1.03, 1.02, 1.04), False),
        (1.308, Interval(0.97, 0.96, 0.98), True),  # who was slow then is not ahead by that
        (1.170, Interval(1.1, 0.8, 1.2), False),  # who was noisy then lends no place now
    ],
)
def test_an_older_run_of_both_takes_a_place_and_lends_none(
    second: float, older: Interval, tied: bool
) -> None:
    """Slow on purpose beside a rival once, one was ahead alone; noisy, one lent a friend "1="."""
    rows = [*three("first", 1.31, 0.01), *three("second", second, 0.01, run="r2")]
    rows += three("rival", 1.309, 0.002, run="r3")
    asked = {("first", "second"): older, ("rival", "second"): older}
    board = leaderboard(rows, beside=lambda a, b, _: asked.get((a.entry, b.entry))).boards[0]
    assert places(board) == [
        ("first", 1, True),
        ("rival", 1, True),
        ("second", 1 if tied else 3, tied),
    ]


def test_who_shares_a_place_with_thousands_is_asked_beside_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each row sorted all before it: 100,000 copies of one kernel took twelve minutes."""
    rows = [rank.Row(f"e{n}", (), speedup=Interval(1.3, 1.29, 1.31)) for n in range(200)]
    asked, width = list[rank.Row](), rank._width
    monkeypatch.setattr(rank, "_width", lambda row: asked.append(row) or width(row))
    assert {row.rank for row in rank._ranked(rows, (), rank.nowhere)} == {1}
    assert len(asked) < 10 * len(rows)


def test_approximate_rows_are_ranked_apart() -> None:
    results = three("exact", 1.1) + three("rough", 2.0)
    results = [
        r.model_copy(update={"numerics_class": "approximate"})
        if r.entry == "rough" and r.config == "hdim64_seq4k"
        else r
        for r in results
    ]
    board = only(results)
    assert [row.entry for row in board.exact] == ["exact"]
    assert [(row.entry, row.rank) for row in board.approximate] == [("rough", 1)]


def test_one_config_not_passed_is_listed_with_its_reason() -> None:
    good = three("good", 1.1)
    half = three("half", 9.0)[:2]
    half.append(
        result("half", "hdim256_seq16k", status=Status.CRASHED, reason="SIGSEGV in the first call")
    )
    board = only(good + half)
    (row,) = board.unranked
    assert (row.rank, row.speedup) == (None, None)
    assert row.why == "hdim256_seq16k: CRASHED (SIGSEGV in the first call)"


def test_a_config_that_was_interrupted_for_all_is_missed_by_nobody() -> None:
    stopped = {"status": Status.INTERRUPTED, "latency_ms": None, "tflops": None, "speedup": None}
    last = list(CASES)[-1]
    run = [
        r.model_copy(update=stopped) if r.config == last else r
        for r in run_of({"a": 0.9, "b": 1.1})
    ]
    board = only(run)
    assert last not in board.configs
    assert places(board) == [("a", 1, False), ("sdpa_cudnn", 2, False), ("b", 3, False)]
    older = run_of({"c": 1.0}, run="r0")
    assert "interrupted" in only([*older, *run]).unranked[0].why.lower(), (
        "others were measured there"
    )


def test_a_missing_config_is_no_score() -> None:
    board = only(three("good", 1.1) + three("part", 9.0)[:1])
    assert [row.why for row in board.unranked] == ["not run on hdim128_seq8k, hdim256_seq16k"]


def test_a_speed_up_over_somebody_else_is_no_score() -> None:
    odd = [result("odd", c, speedup=told(9.0, against="sdpa")) for c in CASES]
    board = only(three("good", 1.1) + odd)
    assert [row.why for row in board.unranked] == ["hdim64_seq4k: not timed beside sdpa_cudnn"]


def test_one_row_over_another_baseline_takes_nobodys_place() -> None:
    mine = [
        result(name, c, speedup=told(1.5, against="sdpa")) for name in ("a", "b") for c in CASES
    ]
    odd = [result("odd", c, speedup=told(9.0)) for c in CASES]
    board = only(mine + odd)
    assert board.headline == "sdpa"
    assert [row.entry for row in board.unranked] == ["odd"]


def test_the_libraries_of_a_run_say_nothing_of_the_headline() -> None:
    """A pull request brings them over the suite's own baseline, also where its entry crashed."""
    mine = [result("a", c, speedup=told(1.5, against="sdpa")) for c in CASES]
    theirs = [
        result(name, c, kind=Kind.BASELINE, speedup=told(1.1)) for name in ("b", "c") for c in CASES
    ]
    assert only(mine + theirs).headline == "sdpa"
    assert only(theirs).headline == "sdpa_cudnn"


def test_without_cudnn_the_suites_own_headline_is_taken() -> None:
    odd = [result("odd", c, speedup=told(2.0, against="sdpa")) for c in CASES]
    board = only(odd)
    assert board.headline == "sdpa"
    assert board.exact[0].speedup.value == pytest.approx(2.0)


@pytest.mark.parametrize("told", [(2, 1, math.inf), (math.nan, 1, 3), (0, 0, 1), (2, 3, 4)])
def test_what_is_no_interval_is_no_speed_up(told: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match=r"value|low|high"):
        Speedup(against="sdpa_cudnn", value=told[0], low=told[1], high=told[2])


def test_intervals_at_the_ends_of_the_floats_are_still_compared() -> None:
    slow, fast = (Interval(x, x / 2, x * 2) for x in (1e-300, 1e300))
    assert 0 < stats.quotient(slow, fast).value < stats.quotient(fast, slow).value < math.inf


def test_cpu_results_are_never_ranked() -> None:
    results = [result("a", c, gpu="cpu", machine=CPU, speedup=told(2.0)) for c in CASES]
    board = only(results)
    assert board.is_cpu
    assert not board.ranked
    assert board.unranked[0].why == "a CPU's times are never ranked"


def test_gpu_suite_and_protocol_make_boards_of_their_own() -> None:
    results = three("a", 1.1) + three("a", 1.2, gpu="NVIDIA H100")
    results += three("a", 1.3, suite_sha256="6" * 64) + three("a", 1.4, protocol=2)
    results += [result("a", gpu="cpu", machine=CPU)]
    boards = leaderboard(results).boards
    assert len(boards) == 5
    assert boards[-1].is_cpu
    assert [b.protocol for b in boards if b.gpu == "NVIDIA H200"] == [2, 1, 1]


def test_the_newest_result_counts() -> None:
    results = three("a", 1.1) + three("a", 1.5, run="r2", date="2026-11-22")
    board = only(results)
    assert board.exact[0].speedup.value == pytest.approx(1.5)
    assert board.exact[0].date == "2026-11-22"


def test_a_newer_failure_takes_the_score_away() -> None:
    later = result("a", status=Status.INCORRECT, run="r2", date="2026-11-22", reason="max diff 1")
    assert only([*three("a", 1.1), later]).unranked[0].why.startswith("hdim64_seq4k: INCORRECT")


@pytest.mark.parametrize("status", sorted(NO_VERDICT))
def test_an_ending_that_is_no_verdict_takes_nothing_away(status: Status) -> None:
    later = result("a", status=status, run="r2", date="2026-11-22")
    for order in (1, -1):
        assert only(([*three("a", 1.1), later])[::order]).exact[0].rank == 1


def test_a_time_whose_headline_failed_takes_no_place_away() -> None:
    """It stands beside nothing; who had a place by an older run was not ranked any more."""
    later = result("a", run="r2", date="2026-11-22")
    for order in (1, -1):
        board = only([*three("a", 1.1), later][::order])
        assert (board.exact[0].rank, board.exact[0].date) == (1, "2026-11-21")
    failed = result("a", status=Status.INCORRECT, run="r2", date="2026-11-22")
    assert (
        only([*three("a", 1.1), failed, later])
        .unranked[0]
        .why.startswith("hdim64_seq4k: INCORRECT")
    )


def test_who_broke_the_run_does_not_keep_an_older_place() -> None:
    later = result("a", status=Status.BROKE_THE_RUN, run="r2", date="2026-11-22")
    assert only([*three("a", 1.1), later]).unranked[0].why.startswith("hdim64_seq4k: BROKE_THE_RUN")


def test_an_old_result_of_other_source_does_not_count() -> None:
    results = three("b", 1.0) + three("a", 9.0, source_sha256="0" * 64)
    results.append(
        result("a", speedup=told(1.1), source_sha256="1" * 64, run="r2", date="2026-11-22")
    )
    board = only(results)
    assert [row.why for row in board.unranked] == ["not run on hdim128_seq8k, hdim256_seq16k"]


def test_newest_is_idempotent() -> None:
    results = three("a", 1.1) + three("a", 1.5, run="r2") + three("b", 1.0)
    once = newest(results)
    assert newest(once) == once
    assert len(once) == 6


def test_who_was_measured_without_a_sandbox_has_no_place() -> None:
    results = three("a", 1.1) + three("b", 1.0)
    results[1] = results[1].model_copy(update={"integrity": "judged/0"})
    board = only(results)
    assert [row.entry for row in board.ranked] == ["b"]
    assert "without a sandbox, --sandbox 1" in board.unranked[0].why


def test_integrity_is_the_weakest_of_the_row() -> None:
    results = three("a", 1.1)
    results[1] = results[1].model_copy(update={"integrity": "cooperative"})
    assert only(results).exact[0].integrity == "cooperative"
    for levels, weakest in (
        (("judged/2", "judged/1", "judged/2"), "judged/1"),
        (("judged/1", "unlocked/2", "judged/3"), "unlocked/2"),
        (("unlocked/1", "unlocked/2", "cooperative/2"), "cooperative/2"),
    ):
        mixed = [
            each.model_copy(update={"integrity": level})
            for each, level in zip(results, levels, strict=True)
        ]
        assert only(mixed).exact[0].integrity == weakest


def test_a_step_of_a_ladder_has_a_score_and_takes_no_place() -> None:
    board = only(run_of({"mine": 0.8, "mine/steps/03_early": 0.7, "slow": 1.3}))
    assert places(board) == [
        ("mine", 1, False),
        ("sdpa_cudnn", 2, False),
        ("slow", 3, False),
        ("mine/steps/03_early", None, False),
    ]
    (step,) = board.steps
    assert step.champion == "mine"
    assert step.speedup.value == pytest.approx(1 / 0.7, rel=0.01)
    assert not only([result(gpu="cpu", machine=H200, entry="a/steps/b")]).is_cpu


def test_more_blocks_and_more_baselines_ask_the_same_question() -> None:
    suite = Suite(name="fa3", cases=tuple(CASES.values()))
    more = suite.model_copy(update={"blocks": 40, "baselines": ("sdpa",), "description": "x"})
    other = suite.model_copy(update={"cases": suite.cases[:2]})
    assert suite.sha256 == more.sha256
    assert suite.sha256 != other.sha256


def test_no_results_no_boards() -> None:
    assert leaderboard([]).boards == ()


def test_entries_that_left_at_different_blocks_are_ranked_by_what_they_share() -> None:
    results = run_of({"fast": 0.80, "short": 0.82, "slow": 0.84}, seed=5)
    told = Stopping(rule="race 1", looks=4, why="left the race")
    results = [
        r.model_copy(
            update={"stopping": told, "samples": r.samples[:9] if r.entry == "short" else r.samples}
        )
        for r in results
    ]
    (board,) = leaderboard(results).boards
    mine = [row.entry for row in board.exact if row.entry in ("fast", "short", "slow")]
    assert mine == ["fast", "short", "slow"]
    a, b = (next(r for r in results if r.entry == name) for name in ("fast", "short"))
    once = direct_on(
        a.model_copy(update={"stopping": None}), b.model_copy(update={"stopping": None})
    )
    often = direct_on(a, b)
    assert once
    assert often
    assert often.high - often.low > once.high - once.low


def hidden_row(entry: str, **changes: object) -> Result:
    case = CASES["hdim64_seq4k"].model_copy(update={"name": "hidden_hdim64", "seqlen": 1234})
    told = {"config": case.name, "case": case, "secret": "5a" * 32}
    return result(entry, **changes).model_copy(update=told)


def test_a_time_on_a_shape_that_nobody_can_draw_again_is_not_shown() -> None:
    """A run that was stopped never told its secret."""
    untold = hidden_row("a").model_copy(update={"secret": ""})
    assert only([*run_of({"a": 0.9}), untold]).ranked[0].hidden == ()


def test_hidden_shapes_stand_beside_the_configs_and_in_no_mean() -> None:
    plain = run_of({"a": 0.9, "sdpa_flash": 1.3})
    board = only([*plain, hidden_row("a"), hidden_row("sdpa_flash", kind=Kind.BASELINE)])
    assert board.configs == tuple(CASES)
    assert [row.speedup for row in board.ranked] == [row.speedup for row in only(plain).ranked]
    assert [r.config for r in board.ranked[0].hidden] == ["hidden_hdim64"]
    assert not leaderboard([hidden_row("a")]).boards


@pytest.mark.parametrize(
    ("told", "group"),
    [
        ({}, "exact"),
        ({"numerics_class": "approximate"}, "approximate"),
        ({"likeness": {"cudnn": 1.0}}, "library"),
    ],
)
def test_what_it_is_on_a_hidden_shape_it_is(told: dict[str, object], group: str) -> None:
    """Rough, or a library's, on other shapes than the official ones, it had the place of exact."""
    hidden = hidden_row("a", **told)
    board = only([*run_of({"a": 0.9, "sdpa_flash": 1.3}), hidden])
    assert [row.group for row in board.rows if row.entry == "a"] == [group]


@pytest.mark.parametrize(
    ("status", "kind", "ranked"),
    [
        (Status.INCORRECT, Kind.SUBMISSION, False),
        (Status.TIME_CLAIM_REJECTED, Kind.SUBMISSION, False),
        (Status.SLOWER_ALONE, Kind.SUBMISSION, False),
        (Status.OUT_OF_MEMORY, Kind.SUBMISSION, True),
        (Status.UNSUPPORTED, Kind.SUBMISSION, True),
        (Status.INVALID_BASELINE, Kind.BASELINE, True),
    ],
)
def test_who_is_wrong_on_a_hidden_shape_that_it_claims_is_not_ranked(
    status: Status, kind: Kind, ranked: bool
) -> None:
    entry = "a" if kind is Kind.SUBMISSION else "sdpa_flash"
    plain = run_of({"a": 0.9, "sdpa_flash": 1.3})
    board = only([*plain, hidden_row(entry, status=status, kind=kind, reason="so wrong")])
    (row,) = (row for row in board.rows if row.entry == entry)
    assert bool(row.rank) == ranked
    assert ("so wrong" in row.why) != ranked
