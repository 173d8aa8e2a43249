"""A stretch is timed by the judge alone, and who has not computed its calls is found out."""

from __future__ import annotations

import math
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

from harness.judge import stretch  # noqa: E402
from harness.judge.burst import WorkerGone, WorkerLink  # noqa: E402
from harness.judge.inputs import Inputs  # noqa: E402
from harness.judge.stretch import (  # noqa: E402
    Asked,
    SpotCheck,
    Verified,
    _place,
    _report,
    counted,
    pause,
    pauses_s,
    run_stretch,
    window,
)
from harness.measure.evenness import lasting, leap  # noqa: E402
from harness.problems import get_problem  # noqa: E402
from harness.problems.attention_forward_tensors import contract  # noqa: E402
from harness.process import wire  # noqa: E402
from harness.schema import Case, Status, Sustained  # noqa: E402
from harness.worker.__main__ import Worker, failure  # noqa: E402
from harness.worker.stretch import windows_of  # noqa: E402

CASE = Case(name="c", batch=1, heads=2, seqlen=128, headdim=64, burst=3)
PROBLEM = get_problem("attention_forward")
KWARGS: dict[str, bool | float | None] = dict(PROBLEM.kwargs(CASE))
RING = 3


def right(q, k, v, causal=True, sm_scale=None):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)


def asked(seconds: float = 0.05, calls: int = 30) -> Asked:
    """A stretch on random inputs of CASE."""
    generator = torch.Generator().manual_seed(1)
    draw = [torch.randn(CASE.shape, generator=generator).half() for _ in range(3 * RING)]
    inputs = Inputs(
        specs_in=PROBLEM.inputs(CASE),
        specs_out=PROBLEM.outputs(CASE),
        tensors=[tuple(draw[3 * n : 3 * n + 3]) for n in range(RING)],
        references=[],
        kwargs=KWARGS,
        contract_limit=1e-2,
    )
    return Asked(
        inputs=inputs,
        calls=calls,
        seconds=seconds,
        answer=lambda given: contract(given, KWARGS),
        alone=tuple(spec.alone for spec in inputs.specs_in),
        scaled=False,
        seed=5,
    )


def serve(sock: socket.socket, function: Callable[..., object]) -> None:
    """A worker as in its own process, on a thread."""
    worker = Worker(function, Path("/nowhere"), "cpu")
    while True:
        try:
            message, fds = wire.receive_with_fds(sock, max_fds=2)
        except wire.PeerClosed:
            sock.close()
            return
        try:
            reply = worker.handle(message, fds)
        except Exception as cause:
            reply = failure(cause, Path("/nowhere"))
        wire.send(sock, reply)


@pytest.fixture
def stretch_of():
    """Runs one stretch of a function; returns the judge's report."""
    links = []

    def run(function, seconds=0.05):
        ours, theirs = socket.socketpair()
        threading.Thread(target=serve, args=(theirs, function), daemon=True).start()
        size = RING * 2 * 128 * 64 * 2
        link = WorkerLink(ours, "host", (3 * size, size))
        links.append(link)
        link.map(10)
        return run_stretch(link, asked(seconds), 20)

    yield run
    for link in links:
        link.close()


def test_an_honest_worker_has_a_time_and_all_that_was_compared_is_right(stretch_of):
    for _ in range(5):  # a busy machine may keep a thread waiting
        report = stretch_of(right)
        if report.status is Status.PASSED:
            break
    assert report.status is Status.PASSED, report.message
    assert report.checked >= report.calls >= RING
    assert 0 < report.calls_ms[0] <= report.latency_ms
    assert report.until_s > report.since_s > 0
    assert report.rel_l2 < 1e-3


def test_a_worker_may_be_locked_before_what_it_gave_is_looked_at(monkeypatch):
    monkeypatch.setattr(stretch, "_SpotChecker", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    ours, theirs = socket.socketpair()
    wire.send(theirs, {"op": "done", "calls_ms": []})
    seen = []
    link = WorkerLink(ours, "host", (1, 1), over=lambda: seen.append("over"))
    with pytest.raises(WorkerGone, match="0 times for one stretch"):
        stretch._gpu(link, asked(0.05), 20)
    assert seen == ["over"]
    for end in (ours, theirs):
        end.close()


def test_a_stale_result_is_refused(stretch_of):
    """What was right for these very tensors a call ago is wrong for the next window."""
    kept = []

    def stale(q, k, v, causal=True, sm_scale=None):
        kept.append(right(q, k, v, causal, sm_scale) if not kept else kept[0])
        return kept[0]

    report = stretch_of(stale)
    assert report.status is Status.INCORRECT
    assert "o of call" in report.message


def test_a_call_that_is_left_out_is_refused(stretch_of):
    calls = []

    def lazy(q, k, v, causal=True, sm_scale=None):
        calls.append(1)
        return torch.empty_like(q) if len(calls) % RING == 0 else right(q, k, v, causal, sm_scale)

    report = stretch_of(lazy)
    assert report.status in (Status.INCORRECT, Status.NONFINITE)


def test_results_remembered_by_address_and_by_first_words_are_refused(stretch_of):
    """The first window may begin where another did; the second argument does not."""
    kept = {}

    def remembers(q, k, v, causal=True, sm_scale=None):
        key = q.data_ptr() // (1 << 14)
        return kept.setdefault(key, right(q, k, v, causal, sm_scale))

    assert stretch_of(remembers, 0.1).status is Status.INCORRECT


def test_inputs_that_are_written_to_are_noticed(stretch_of):
    def writes(q, k, v, causal=True, sm_scale=None):
        out = right(q, k, v, causal, sm_scale)
        k[..., 0] += 1
        return out

    assert stretch_of(writes).status in (Status.INPUT_MUTATED, Status.INCORRECT)


def test_a_worker_that_fails_is_told_in_its_words(stretch_of):
    def fails(q, k, v, causal=True, sm_scale=None):
        raise NotImplementedError("not here")

    report = stretch_of(fails)
    assert report.status is Status.UNSUPPORTED
    assert "not here" in report.message


def test_a_time_far_below_the_judges_is_refused(stretch_of, monkeypatch):
    def slow(q, k, v, causal=True, sm_scale=None):
        time.sleep(0.05)
        return right(q, k, v, causal, sm_scale)

    monkeypatch.setattr(
        "harness.worker.__main__.cpu_burst",
        lambda function, calls, kwargs, keep: [
            keep(function(*one, **kwargs), n) or 1e-3 for n, one in enumerate(calls)
        ],
    )
    report = stretch_of(slow)
    assert report.status is Status.TIME_CLAIM_REJECTED
    assert "the judge saw" in report.message


@pytest.mark.parametrize("claimed_ms", [0.0, 1e-13])
def test_a_time_that_is_none_is_refused_though_the_judges_is_short(
    stretch_of, monkeypatch, claimed_ms
):
    def frozen(function, calls, kwargs, keep):
        return [keep(function(*one, **kwargs), n) or claimed_ms for n, one in enumerate(calls)]

    monkeypatch.setattr("harness.worker.__main__.cpu_burst", frozen)
    monkeypatch.setattr("harness.judge.stretch.CPU_FLOOR_MS", 1e9)
    assert stretch_of(right).status is Status.TIME_CLAIM_REJECTED


def test_the_judges_window_is_the_workers():
    """Both cut the same bytes: out of tensors side by side here, out of one run of memory there."""
    told = asked()
    ours, theirs = socket.socketpair()
    theirs.close()
    link = WorkerLink(ours, "host", (3 * RING * 2 * 128 * 64 * 2, 64))
    try:
        _place(link, told)
        specs = [[list(spec.shape), spec.dtype] for spec in told.inputs.specs_in]
        cut = windows_of(link.inputs, specs, told.alone, RING, told.calls, told.seed)
        for call, tensors in enumerate(cut):
            for mine, its in zip(window(told, call), tensors, strict=True):
                assert torch.equal(mine, its), call
    finally:
        link.close()


# --------------------------------------------------------------------------- spot checks


def checks(*done: int, ms: float = 0.5, within: int = 0) -> list[SpotCheck]:
    """One after so many calls of `ms` each; `within`: calls that ended while words were read."""
    return [
        SpotCheck(at_ms=ms * d, took_ms=0.05, at_s=ms * d / 1e3, done=d, after=d + within, number=n)
        for n, d in enumerate(done)
    ]


def test_the_last_two_thirds_count_and_a_check_behind_the_end_does_not():
    told = asked(calls=300)
    with pytest.raises(WorkerGone, match="backwards"):
        counted(checks(10, 90, 200, 110, 290, 300), told, 0.5)
    seen = counted(checks(10, 90, 110, 200, 290, 300), told, 0.5)
    assert seen is not None
    assert (seen.calls, seen.latency_ms) == (180, 0.5)
    assert seen.judge_pct == pytest.approx(100 * 2 * 0.05 / 90)
    assert _report(seen, Verified(checked=1)).status is Status.PASSED


@pytest.mark.parametrize(
    ("place", "after", "said"),
    [(2, 109, "backwards"), (2, 1 << 30, "backwards"), (-1, 301, "counts 301 calls of 300")],
)
def test_a_count_that_is_none_of_calls_makes_no_check_void(place, after, said):
    """The word is the worker's: with a check that it took back nothing was compared."""
    told = checks(10, 90, 110, 200, 290, 300)
    told[place] = replace(told[place], after=after)
    with pytest.raises(WorkerGone, match=said):
        counted(told, asked(calls=300), 0.5)


@pytest.mark.parametrize("held_up", [2, 3, 4])
def test_what_checks_took_is_what_the_pauses_lack(held_up):
    """Who held up the last check that counts had its own row doubted as forged."""
    told = checks(10, 90, 110, 200, 290, 300)
    told[held_up] = replace(told[held_up], took_ms=9.0)
    seen = counted(told, asked(calls=300), 0.5)
    spent_ms = sum(each.spent_ms for each in seen.pauses)
    assert spent_ms == pytest.approx(seen.calls * seen.latency_ms * (1 - seen.judge_pct / 100))


def lasts(seen):
    """What the engine makes of it; `early` is no part of a record."""
    told = Sustained(status=Status.PASSED, latency_ms=seen.latency_ms, claimed_ms=seen.latency_ms)
    return lasting(told.model_copy(update={"pauses": seen.pauses}), 1e9, 0.0, seen.early)


@pytest.mark.parametrize("leap_calls", [0, 40])
def test_who_counts_by_leaps_before_it_counts_has_no_time(leap_calls):
    """It could have made meanwhile what counts: 64 GiB hold a thousand results."""
    told = checks(50, 150, 250, 350, 400, 600, 800, 990, ms=1.0)
    told[2] = replace(told[2], done=250 + leap_calls, after=250 + leap_calls)
    seen = counted(told, asked(calls=1000), 1.0)
    assert [each.calls for each in seen.early] == [100 + leap_calls, 100 - leap_calls]
    assert [each.calls for each in seen.pauses] == [50, 200, 200, 190]
    assert _report(seen, Verified(checked=1)).status is Status.PASSED
    found = lasts(seen)
    assert found.status is (Status.UNSTABLE if leap_calls else Status.PASSED), found.reason
    assert not leap_calls or "counts by leaps" in found.reason


def test_who_dawdles_first_and_is_fast_where_it_counts_has_no_time():
    told = [replace(check, at_ms=check.at_ms + 200) for check in checks(500, 1100, 2000, 2900)]
    seen = counted([*checks(110), *told], asked(calls=3000), 0.5)
    assert lasts(seen).status is Status.UNSTABLE


def test_what_lies_before_the_first_call_is_nobody_s_unevenness():
    told = [
        replace(check, at_ms=check.at_ms + 40) for check in checks(0, 1, 200, 400, 800, 990, ms=1.0)
    ]
    seen = counted(told, asked(calls=1000), 1.0)
    assert [each.calls for each in seen.early] == [200]
    assert lasts(seen).status is Status.PASSED


def checked_at_random(counts, cycles=None, seconds=3.0, ms=1.0, ring=6):
    """What spot checks make of a worker that tells `counts(ms)` calls; it is told of each check."""
    rng, calls, at_ms, told = random.Random(7), int(1e3 * seconds / ms), 0.0, []
    for next_s in pauses_s(seconds, rng):
        at_ms += 1e3 * next_s
        done = counts(at_ms, seen=True)
        if done >= calls:
            break
        passed = cycles(at_ms) if cycles else 1.4e6 * at_ms
        told.append(SpotCheck(at_ms, 0.05, at_ms / 1e3, done, done, len(told), passed))
    stretch = replace(asked(calls=calls), inputs=replace(asked().inputs, tensors=[()] * ring))
    found = counted(told, stretch, ms)
    return replace(found, claimed_ms=found.latency_ms)


def honest(at_ms, seen=False):
    return int(at_ms / 1.0)


def dips(at_ms, seen=False):
    """A tenth slower from 1.5 to 1.7 s on, as an H200 at its power limit."""
    return int(at_ms - 0.1 * min(200, max(0, at_ms - 1500)))


def leaps_every(period_ms, work_ms, left, ring=6):
    """Makes calls of 1 ms for `work_ms`, stands still for ring - 1 of them, then has `left` more."""
    each = int(work_ms) + ring - 1 + left

    def counts(at_ms, seen=False):
        whole, inside_ms = divmod(at_ms, period_ms)
        return int(whole) * each + min(int(inside_ms), int(work_ms))

    return counts


class LeapsBehindChecks:
    """Notices that the GPU was away, and leaves out a fifth of what it has made since the last time."""

    def __init__(self, ring=6):
        self.ring, self.since_ms, self.extra, self.stands_until_ms = ring, 0.0, 0, 0.0

    def __call__(self, at_ms, seen=False):
        made = int(min(at_ms, self.stands_until_ms - self.ring + 1))
        made = made if at_ms < self.stands_until_ms else int(at_ms)
        told = made + self.extra if at_ms >= self.stands_until_ms else made + self.before
        if seen:
            self.before = self.extra
            self.extra += int((at_ms - self.since_ms) / 5)
            self.since_ms, self.stands_until_ms = at_ms, at_ms + self.ring - 1
        return told


@pytest.mark.parametrize("counts", [honest, dips])
def test_who_counts_evenly_is_believed(counts):
    seen = checked_at_random(counts, cycles=lambda at_ms: 1.4e6 * counts(at_ms))
    assert leap(seen.pauses) is None
    assert _report(seen, Verified(checked=1)).status is Status.PASSED


def test_a_worker_that_dips_while_the_sms_do_not_leaps():
    assert leap(checked_at_random(dips).pauses)


@pytest.mark.parametrize(
    "counts",
    [
        lambda at_ms, seen=False: int(at_ms) // 12 * 12,  # twelve at once
        leaps_every(60, 55, 12),
        leaps_every(120, 115, 24),
        leaps_every(30, 25, 6),
        LeapsBehindChecks(),
    ],
    ids=["by_dozens", "60 ms", "120 ms", "30 ms", "behind_checks"],
)
def test_who_leaves_calls_out_counts_by_leaps_at_some_distance(counts):
    """A fifth of the calls is never made; all that is there at any moment is right."""
    assert leap(checked_at_random(counts).pauses)


@pytest.mark.parametrize(
    ("cycles", "sm_mhz"), [(1.4e8, 1400), (0, 0), (1e3, 0), (1e12, 0)], ids=str
)
def test_a_pause_is_what_was_the_workers_and_its_clock_a_clock_there_is(cycles, sm_mhz):
    first = SpotCheck(200.0, 1.0, 0.2, 100, 100, 0, 5e8)
    later = SpotCheck(300.0, 2.0, 0.3, 300, 301, 1, 5e8 + cycles)
    assert pause(first, later) == (99.0, 200, sm_mhz)


def test_who_once_runs_ahead_while_it_is_looked_at_has_no_time():
    """What it counts then is not compared, and time catches up."""
    told = checks(*range(105, 295, 10), within=1)
    assert (
        _report(counted(told, asked(calls=300), 0.5), Verified(checked=1)).status is Status.PASSED
    )
    told[3] = replace(told[3], after=told[3].done + 2)
    report = _report(counted(told, asked(calls=300), 0.5), Verified(checked=1))
    assert report.status is Status.UNSTABLE
    assert "not complete" in report.message


@pytest.mark.parametrize("seconds", [1.0, 3.0, 60.0])
def test_pauses_are_of_every_length_and_tell_nothing_of_the_next(seconds):
    """Each eighth came once in eight: who had met seven knew when no check could come."""
    longest_s = max(0.3, seconds / 10)
    drawn = list(islice(pauses_s(seconds, random.Random(5)), 4000))
    assert 0.002 <= min(drawn) < 0.0021
    assert 0.95 * longest_s < max(drawn) <= longest_s
    places = [int(8 * math.log(each / 0.002) / math.log(longest_s / 0.002)) for each in drawn]
    again = sum(first == then for first, then in pairwise(places))
    assert 400 < again < 600, "as often as any other: one in eight"
    assert sum(sum(drawn[n : n + 160]) < seconds for n in range(0, 4000, 160)) == 0


@pytest.mark.parametrize(
    ("claimed_ms", "checked", "status"),
    [(0.48, 1, Status.TIME_CLAIM_REJECTED), (0.5, 0, Status.UNSTABLE), (0.49, 1, Status.PASSED)],
)
def test_both_clocks_and_somebody_something_compared(claimed_ms, checked, status):
    seen = counted(checks(110, 200, 290), asked(calls=300), claimed_ms)
    assert _report(seen, Verified(checked=checked)).status is status


@pytest.mark.parametrize("done", [(), (150,), (150, 151), (10, 90, 300, 300), (110, 120, 170)])
def test_too_few_checks_tell_no_time(done):
    assert counted(checks(*done), asked(calls=300), 0.5) is None


@pytest.mark.parametrize(
    ("done", "after", "ring", "intact"),
    [(10, 10, 4, [7, 8, 9]), (10, 12, 4, [9]), (10, 13, 4, []), (2, 2, 4, [0, 1]), (9, 9, 2, [8])],
)
def test_only_results_that_nobody_wrote_to_meanwhile_are_compared(done, after, ring, intact):
    assert list(SpotCheck(0, 0, 0, done, after, 0).intact(ring)) == intact
