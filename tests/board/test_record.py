"""Records: lines, files, and who writes them."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from harness import PROTOCOL
from harness.board import query, record, rivals
from harness.board.history import history
from harness.board.rank import leaderboard
from harness.board.record import newest
from harness.board.render import markdown
from harness.board.store import Store
from harness.catalog import suites
from harness.catalog.suites import is_asked, load_suite
from harness.cli.results.compare import find_pairs
from harness.errors import Exit, StorageError
from harness.judge.secret import Secret
from harness.measure import stats
from harness.problems import get_problem
from harness.problems.shapes import DRAWN as DRAWS
from harness.problems.shapes import hidden_cases
from harness.process.sandbox.folders import remove_tree
from harness.schema import Case, Error, Kind, Result, Slack, Speedup, Status, Telemetry
from harness.schema.mismatch import Mismatch
from tests.board.factory import (
    CPU,
    H200,
    forged,
    load,
    mismatch,
    of_fields,
    result,
    run_of,
    stretch,
)

ROOT = Path(__file__).resolve().parents[2]


def write_all(folder: Path, results: list) -> Path:
    paths = {record.append(folder, one) for one in results}
    assert len(paths) == 1
    return paths.pop()


def test_a_run_comes_back_as_it_was(tmp_path: Path) -> None:
    results = run_of({"mine": 0.9}, seed=1)
    path = write_all(tmp_path, results)
    assert path == tmp_path / "nvidia-h200" / "2026-11-21_fa3_r1.jsonl"
    assert load(tmp_path) == (results, [])


def test_crc_is_the_last_key_and_the_line_is_strict_json() -> None:
    line = record.to_line(result())
    fields = json.loads(line, parse_constant=pytest.fail)
    assert list(fields)[-1] == "crc32"
    assert list(fields)[-5:-1] == list(record.HEAVY)
    assert "\n" not in line


def test_a_line_in_another_order_is_the_same_line(tmp_path: Path) -> None:
    """As any program but ours may write it: schema's own order, or sorted."""
    told = run_of({"mine": 0.9})[1]
    fields = json.loads(record.to_line(told))
    fields.pop("crc32")
    for ordered in (told.model_dump(mode="json"), dict(sorted(fields.items()))):
        body = json.dumps(ordered, separators=(",", ":"))[:-1]
        line = f'{body},"crc32":"{zlib.crc32(body.encode()):08x}"}}'
        assert record.parse(line.encode()) == told
        (tmp_path / "x.jsonl").write_text(line + "\n")
        (head,), bad = record.heads(tmp_path)
        assert not bad
        assert (head.entry, head.config, head.tflops) == (told.entry, told.config, told.tflops)


def test_numbers_json_lacks_survive(tmp_path: Path) -> None:
    error = Error(max_diff=math.nan, rel_l2=math.inf, worst_row=-math.inf, finite=False)
    told = result(status=Status.NONFINITE, error=error, max_diff=None, numerics_class="")
    write_all(tmp_path, [told])
    (back,), bad = load(tmp_path)
    assert not bad
    assert back.error is not None
    assert math.isnan(back.error.max_diff)
    assert back.error.rel_l2 == math.inf
    assert back.error.worst_row == -math.inf


def test_where_it_is_wrong_survives(tmp_path: Path) -> None:
    write_all(tmp_path, [result(status=Status.NONFINITE, mismatch=mismatch())])
    ((found,), bad) = load(tmp_path)
    assert not bad
    assert found.mismatch
    assert found.mismatch.words() == mismatch().words()
    assert math.isnan(found.mismatch.got)


@given(st.text(max_size=60), st.text(max_size=200))
def test_any_text_survives(reason: str, log: str) -> None:
    reason, log = (t.encode("utf-8", "replace").decode() for t in (reason, log))
    told = result(status=Status.CRASHED, reason=reason + ',"samples":', log_tail=log + ',"crc32":"')
    assert record.parse(record.to_line(told).encode()) == told


def test_a_truncated_last_line_costs_only_itself(tmp_path: Path) -> None:
    results = run_of({"mine": 0.9})
    path = write_all(tmp_path, results)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    back, bad = load(tmp_path)
    assert back == results[:-1]
    assert [str(line) for line in bad] == [
        f"{path}:{len(results)}: the line is cut short: no crc32 at its end"
    ]


@pytest.mark.parametrize("cut", range(1, 30, 3))
def test_every_cut_is_noticed(tmp_path: Path, cut: int) -> None:
    path = write_all(tmp_path, [result()])
    path.write_bytes(path.read_bytes()[:-cut])
    back, bad = load(tmp_path)
    assert (len(back), len(bad)) == ((1, 0) if cut == 1 else (0, 1))


def test_appending_after_a_truncated_line_loses_nothing_else(tmp_path: Path) -> None:
    first, second = result("a"), result("b")
    path = write_all(tmp_path, [first])
    path.write_bytes(path.read_bytes()[:-40])
    write_all(tmp_path, [second])
    back, bad = load(tmp_path)
    assert back == [second]
    assert [line.number for line in bad] == [1]


def test_one_changed_digit_is_noticed_and_named(tmp_path: Path) -> None:
    path = write_all(tmp_path, run_of({"mine": 0.9}))
    lines = path.read_text().splitlines()
    lines[2] = lines[2].replace('"blocks":20', '"blocks":99')
    path.write_text("\n".join(lines) + "\n")
    back, bad = load(tmp_path)
    assert len(back) == len(lines) - 1
    assert str(bad[0]) == f"{path}:3: the line was changed: its crc32 does not match"


def test_a_line_with_a_good_crc_and_a_wrong_schema_is_named(tmp_path: Path) -> None:
    path = write_all(tmp_path, [result()])
    body = path.read_bytes()[: -record.CRC_BYTES - 1].replace(b'"config":', b'"konfig":')
    forged = body + b',"crc32":"%08x"}' % zlib.crc32(body)
    path.write_bytes(forged + b"\nnot json\n\n")
    back, bad = load(tmp_path)
    assert back == []
    assert bad[0].number == 1
    assert "config" in bad[0].reason
    assert bad[1].number == 2
    assert len(record.heads(tmp_path)[1]) == 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tflops", b"1" + b"0" * 400),  # no float holds it
        ("protocol", b"[1]"),
        ("protocol", b"null"),
        ("run", b"7"),
        ("speedup", b"5"),
        ("speedup", b'{"against":"x"}'),
        ("speedup", b"[" * 100_000 + b"]" * 100_000),
    ],
)
def test_a_line_made_by_a_stranger_costs_only_itself(
    tmp_path: Path, key: str, value: bytes
) -> None:
    path = write_all(tmp_path, [result(), result("yours")])
    first, second = path.read_bytes().splitlines()
    found = re.search(rb'"%b":([^,{]+|{[^}]*})' % key.encode(), first)
    assert found
    body = first[: -record.CRC_BYTES].replace(found[0], b'"%b":%b' % (key.encode(), value), 1)
    path.write_bytes(body + b',"crc32":"%08x"}\n%b\n' % (zlib.crc32(body), second))
    heads, bad = record.heads(tmp_path)
    assert [(line.number, bool(line.reason)) for line in bad] == [(1, True)]
    assert [head.entry for head in heads] == ["yours"]
    assert [r.entry for r in load(tmp_path)[0]] == ["yours"]


def samples_of(*calls_ms: float | str, **changes: object) -> list[dict[str, object]]:
    return [{"block": n, "calls_ms": calls_ms, "t2_ms": 9.0, **changes} for n in range(20)]


@pytest.mark.parametrize(
    "changes",
    [
        {"latency_ms": 0.0},
        {"latency_ms": 1e308},
        {"tflops": "NaN"},
        {"peak_pct": "Infinity"},
        {"speedup": {"against": "sdpa_cudnn", "value": 9, "low": 9, "high": "Infinity"}},
        {"speedup": {"against": "sdpa_cudnn", "value": 0, "low": 0, "high": 0}},
        {"speedup": {"against": "sdpa_cudnn", "value": 2, "low": 3, "high": 1}},
        {"speedup": {"against": "sdpa_cudnn", "value": 1e-320, "low": 1e-320, "high": 1e-320}},
        {"samples": samples_of()},
        {"samples": samples_of(0.0)},
        {"samples": samples_of(-1.0)},
        {"samples": samples_of("NaN")},
        {"samples": samples_of(*[1.0] * 65)},
        {"samples": samples_of(1.0, t2_ms="NaN")},
        {"samples": samples_of(1.0, energy_j="Infinity")},
        {"slack": {"burst_pct": 1, "mean_pct": "NaN"}},
        {"energy": {"joules_per_call": "NaN", "low_j": 1, "high_j": 2}},
        {"telemetry": [{"power_w": "NaN"}]},
        {"clock_mhz": -5},
        {"drift_pct": "NaN"},
        {"build_s": "-Infinity"},
        {"blocks": 10**4000},
        {"stopping": {"rule": "x", "looks": 10**18, "why": "y"}},
        {"problem": "nobody"},
        {"entry": "e" * 300},
        {"entry": "e/" * 5000},
        {"entry": "nul\0"},
        {"entry": "`|<b>vil"},
        {"entry": "up/../../away"},
        {"config": "\x1b[2Jhdim64"},
        {"config": "hdim128_seq8k"},
        {"integrity": "judged/0."},
        {"integrity": "judged/9"},
        {"integrity": "believed/2"},
        {"suite": "\x9b2J"},
        {"kind": "evil", "samples": "none"},
        {"status": "\x1b]0;x\x07", "samples": "none"},
        {"gpu": "g" * 300},
        {"protocol": 0},
        {"protocol": 10**400},
        {"protocol": PROTOCOL + 1},
        {"status": "WONDERFUL"},
        {"date": "2026-13-1"},
        {"date": "2026-11-31"},
        {"date": "2025-02-29T01:00:00Z"},
        {"date": "2026-11-22T99:99:99Z"},
        {"date": "9" * 1000},
        {"date": "9999-12-31"},
        {"date": "9999-12-31T23:59:59Z", "samples": "none"},
        {"run": "r" * 400},
        {"machine": {"gpu": "NVIDIA H200", "sms": 132, "capability": "x.y"}},
        {"machine": H200.model_dump() | {"sms": 131}},
        {"machine": H200.model_dump() | {"capability": "9.1", "gpu": "Z9"}},
        {"machine": H200.model_dump() | {"memory_gib": 40.0}},
        {"gpu": "NVIDIA H100 PCIe"},
        {"machine": {"gpu": "x" * 300, "sms": 132}},
    ],
)
def test_a_row_that_no_run_writes_is_named_and_hides_nobody(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    honest = run_of({"mine": 0.9}, date="2026-11-20")
    mine = next(r for r in honest if r.entry == "mine")
    write_all(tmp_path, honest)
    path = tmp_path / "nvidia-h200" / "x.jsonl"
    path.write_text(forged(mine, **{"date": "2026-11-22", "run": "r2", **changes}))
    heads, bad = record.heads(tmp_path)
    results, worse = record.read_chosen(heads, newest)
    assert [(line.path, line.number) for line in bad + worse] == [(path, 1)]
    assert len(results) == len(honest)
    assert history(heads)
    markdown.render(leaderboard(results), {}, "")


def test_what_has_not_come_says_so(tmp_path: Path) -> None:
    """A newer checkout's records, and a wrong clock's; of a day nobody asks."""
    now = time.time()
    dates = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now + s)) for s in (80_000, 90_000)]
    told = [{"protocol": PROTOCOL}, {"protocol": PROTOCOL + 1}, *({"date": date} for date in dates)]
    told.append({"date": dates[0][:10]})
    (tmp_path / "x.jsonl").write_text("".join(forged(result(), **each) for each in told))
    found, bad = record.heads(tmp_path)
    assert [head.number for head in found] == [1, 3, 5]
    newer = f"protocol {PROTOCOL + 1} is newer than this checkout's {PROTOCOL}"
    late = f"date {dates[1]} has not come: its machine's clock, or ours, is wrong"
    assert [(line.number, line.reason) for line in bad] == [(2, newer), (4, late)]
    for each, why in ((told[1], newer), (told[3], late)):
        with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
            record.parse(forged(result(), **each).strip().encode())


def test_what_no_board_shows_stands_in_no_history(tmp_path: Path) -> None:
    changes = {"kind": "evil", "run": "r2", "samples": "none"}
    (tmp_path / "x.jsonl").write_text(forged(result(), **changes))
    assert not history(record.heads(tmp_path)[0])


@pytest.mark.parametrize(
    ("held", "doubtful"),
    [
        ({}, False),
        ({"slack": Slack(burst_pct=9, mean_pct=1)}, False),
        ({"slack": Slack(burst_pct=9, mean_pct=8)}, True),
        ({"integrity": "judged/0"}, True),
        ({"integrity": "unlocked/2"}, True),
    ],
)
def test_the_history_marks_what_no_board_ranks(
    held: dict[str, object], doubtful: bool, tmp_path: Path
) -> None:
    write_all(tmp_path, [each.model_copy(update=held) for each in run_of({"mine": 0.9})])
    points = history(record.heads(tmp_path)[0])
    assert {point.doubtful for point in points if point.entry == "mine"} == {doubtful}


def test_a_run_that_was_merged_twice_counts_once(tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        write_all(tmp_path / name, run_of({"mine": 0.9}))
        heads, _ = record.heads(tmp_path)
        libraries = query.Libraries(heads)
        mine, *_ = (r for r in record.read(heads)[0] if r.entry == "mine")
        found.append((history(heads), [r.entry for r in libraries(mine)]))
    assert found[0] == found[1]


def test_many_lines_that_are_no_rows_are_read_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_all(tmp_path, run_of({"mine": 0.9}, date="2026-10-20"))
    changes = ({"run": f"r{n}", "date": f"2026-10-{n:02}", "samples": "no"} for n in range(21, 29))
    timed = result("mine", speedup=Speedup(against="sdpa_cudnn", value=1.0, low=0.9, high=1.1))
    (tmp_path / "x.jsonl").write_text("\n".join(forged(timed, **one) for one in changes))
    heads, _ = record.heads(tmp_path)
    parsed: list[bytes] = []
    parse = record.parse
    monkeypatch.setattr(
        record, "parse", lambda raw, path: [parsed.append(raw), parse(raw, path)][1]
    )
    results, bad = record.read_chosen(heads, newest)
    assert (len(results), len(bad)) == (6, 8)
    assert len(parsed) < 3 * len(heads)


@pytest.mark.parametrize("kind", ["folder", "fifo", "dangling", "loop", "mem", "twice", "late"])
def test_what_is_no_file_is_left_out(tmp_path: Path, kind: str) -> None:
    """`late`: its reader waits for the kernel's next word. `twice`: a row is read once."""
    write_all(tmp_path, [result()])
    path = tmp_path / "nvidia-h200" / "x.jsonl"
    make = {"folder": path.mkdir, "fifo": lambda: os.mkfifo(path)}
    links = {"loop": path.name, "mem": "/proc/self/mem", "late": "/proc/kmsg"}
    links |= {"twice": next(path.parent.iterdir()).name}
    make.get(kind, lambda: path.symlink_to(links.get(kind, "nowhere")))()
    heads, bad = record.heads(tmp_path)
    assert (len(heads), len(load(tmp_path)[0])) == (1, 1)
    assert [str(line).startswith(f"{path}: a folder") for line in bad] == [True]


def test_a_file_of_two_names_is_read_once(tmp_path: Path) -> None:
    """A tar of 231 KB has 10,000 hard links to one file of 231 rows."""
    first = write_all(tmp_path, [result()])
    (tmp_path / "z.jsonl").hardlink_to(first)
    assert [head.path for head in record.heads(tmp_path)[0]] == [first]


def test_a_file_that_the_system_does_not_open_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_all(tmp_path, [result()])
    monkeypatch.setattr(record, "plain", mock.Mock(side_effect=PermissionError(13, "denied")))
    heads, bad = record.heads(tmp_path)
    assert (heads, [line.reason for line in bad]) == ([], ["cannot be read: denied"])


def test_a_time_on_a_failed_line_is_refused(tmp_path: Path) -> None:
    path = write_all(tmp_path, [result()])
    body = path.read_bytes()[: -record.CRC_BYTES - 1].replace(b'"PASSED"', b'"CRASHED"')
    path.write_bytes(body + b',"crc32":"%08x"}\n' % zlib.crc32(body))
    back, bad = load(tmp_path)
    assert back == []
    assert "if and only if" in bad[0].reason


def test_heads_and_read_give_the_same_results(tmp_path: Path) -> None:
    results = run_of({"mine": 0.9, "yours": 1.1})
    path = write_all(tmp_path, results)
    path.write_bytes(b"\n" + path.read_bytes())
    heads, bad = record.heads(tmp_path)
    assert not bad
    assert record.read(heads) == (results, [])
    assert [h.speedup and h.speedup.against for h in heads] == ["sdpa_cudnn"] * len(results)
    assert heads[1].number == 3


def test_a_line_that_ends_as_on_another_system_is_the_same_line(tmp_path: Path) -> None:
    path = write_all(tmp_path, [result("mine")])
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    results, bad = record.read(record.heads(tmp_path)[0])
    assert not bad
    assert [r.entry for r in results] == ["mine"]


def test_a_key_further_down_that_is_named_like_the_heavy_ones_hides_no_row(tmp_path: Path) -> None:
    """The front was cut at the first mark: a library or an argument of that name is one too."""
    told = mismatch()
    told = told.model_copy(
        update={"draw": told.draw.model_copy(update={"kwargs": {"a": 1, "samples": 2}})}
    )
    odd = [
        result(likeness={"a": 0.1, "samples": 0.2}),
        result(
            status=Status.INCORRECT,
            reason="wrong",
            samples=[],
            mismatch=told,
            config="hdim128_seq8k",
        ),
    ]
    for each in odd:
        record.append(tmp_path, each)
    found, bad = record.heads(tmp_path)
    assert not bad
    assert [*map(record.to_line, record.read(found)[0])] == [*map(record.to_line, odd)]


def test_cpu_results_go_to_their_own_folder(tmp_path: Path) -> None:
    path = record.append(tmp_path, result(gpu="cpu", machine=CPU))
    assert path.parent.name == "cpu"


def test_a_name_that_a_file_system_dislikes_becomes_dashes() -> None:
    name = record.file_name("2026-11-21T08:00:00Z", "my/suite ../x", "")
    assert name == "2026-11-21_my-suite-..-x_x.jsonl"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_full_disk_gives_the_line_back_and_keeps_the_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    first = result("a")
    path = write_all(tmp_path, [first])
    before = path.read_bytes()
    real = os.write

    def half_then_full(fd: int, data: memoryview) -> int:
        if len(data) > 100:
            return real(fd, data[:100])
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "write", half_then_full)
    second = result("b")
    with pytest.raises(record.LineNotWritten) as caught:
        record.append(tmp_path, second)
    monkeypatch.undo()
    assert isinstance(caught.value, StorageError)
    assert caught.value.exit_code == Exit.STORAGE
    assert caught.value.line == record.to_line(second)
    assert str(path.name) in str(caught.value)
    assert "next:" in str(caught.value)
    assert path.read_bytes() == before


def test_no_line_is_an_order_to_a_ci_runner() -> None:
    """One that the disk refuses is printed as it is."""
    told = result("a").model_copy(update={"author": "##vso[task.setvariable variable=A]b ###[c"})
    line = record.to_line(told)
    assert not re.search(r"##\w*\[", line)
    assert record.parse(line.encode()) == told


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "nvidia-h200").write_text("a file is in the way")
    with pytest.raises(StorageError, match="cannot write the record of mine"):
        record.append(tmp_path, result())


def test_a_run_that_could_keep_nothing_does_not_begin(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match=r"file: no record can be written there.*\n.*--results"):
        Store(tmp_path / "file")
    Store(tmp_path / "new" / "folder")
    assert list((tmp_path / "new" / "folder").iterdir()) == []


def test_an_empty_folder_is_no_error(tmp_path: Path) -> None:
    assert load(tmp_path) == ([], [])
    assert load(tmp_path / "absent") == ([], [])


ROOT = Path(__file__).resolve().parents[2]
#: Keys that records of the first days do not have.
YOUNGER = ("stopping", "clock_mhz", "clock_pct", "drift_pct", "energy")


def test_records_from_before_a_field_was_added_are_read() -> None:
    told = run_of({"mine": 0.9})[1]
    fields = {k: v for k, v in told.model_dump(mode="json").items() if k not in YOUNGER}
    for sample in fields["samples"]:
        del sample["sm_mhz"], sample["energy_j"]
    body = json.dumps(fields, separators=(",", ":"))[:-1]
    back = record.parse(f'{body},"crc32":"{zlib.crc32(body.encode()):08x}"}}'.encode())
    assert back == told
    assert back.looks == 1


def test_every_committed_record_is_read() -> None:
    results, bad = load(ROOT / "results")
    assert results
    assert not bad


def test_a_line_that_was_written_again_is_not_called_cut(tmp_path: Path) -> None:
    whole = json.loads(record.to_line(result()))
    (tmp_path / "a.jsonl").write_text(json.dumps(whole) + "\n")  # with spaces, as jq has it
    _, (bad,) = load(tmp_path)
    assert "written again by another program" in bad.reason


@pytest.mark.parametrize(
    "field", ["integrity", "source_sha256", "suite_sha256", "harness_commit", "secret"]
)
def test_what_is_shown_as_it_is_gives_no_order(field: str) -> None:
    """`show` printed a node's level and hashes to the terminal as they came."""
    for word in ("\x1b[2J", "`|<b>", "a\nb", "::error::x"):
        line = record.to_line(result("mine").model_copy(update={field: word}))
        with pytest.raises(ValueError, match=field):
            record.parse(line.encode())


def test_no_key_stands_twice() -> None:
    """The board chose the line by the one entry and showed it as the other's."""
    body = record.to_line(result("mine")).rpartition(',"crc32"')[0]
    body = body.replace('"samples":', '"entry":"other","samples":', 1)
    with pytest.raises(ValueError, match="written twice"):
        record.parse(f'{body},"crc32":"{zlib.crc32(body.encode()):08x}"}}'.encode())


@pytest.mark.parametrize(
    "run", ["$(touch x);x", "r1 x", "-r1", "r1-", "a/b", "##[error]", "r_1", "", "r" * 101]
)
def test_a_run_s_name_can_be_typed_and_is_a_part_of_a_file_s(run: str) -> None:
    """It stands in commands to type, and what a file's name lacks made two runs' files one."""
    line = record.to_line(result("mine").model_copy(update={"run": run}))
    with pytest.raises(ValueError, match="run: String should match"):
        record.parse(line.encode())


def test_the_energy_of_a_stretch_has_an_error() -> None:
    """Without one no page could be drawn, for nobody."""
    told = stretch(1.0).model_copy(update={"energy_error_pct": None})
    line = record.to_line(result("mine").model_copy(update={"sustained": told}))
    with pytest.raises(ValueError, match="energy has no error"):
        record.parse(line.encode())


@pytest.mark.parametrize(
    "told",
    [
        {"reason": "x" * 100_001},
        {"log_tail": "x" * 100_001},
        {"kernels": ("k",) * 1001},
        {"telemetry": (Telemetry(),) * 20_001},
        {"likeness": {str(n): 0.5 for n in range(1001)}},
        {"machine": {"torch": "2" * 501}},
    ],
    ids=lambda told: next(iter(told)),
)
def test_no_row_is_without_end(told: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="at most"):
        Result(**result().model_dump() | told)


def unbounded(node: Any, where: str = "") -> Iterator[str]:
    """Texts, numbers, lists and keys of a JSON schema that have no end; a text that has one is Unicode, too."""
    if isinstance(node, list):
        node = dict(enumerate(node))
    if not isinstance(node, dict):
        return
    ends = {
        "string": {"maxLength", "pattern", "enum", "const"},
        "integer": {"maximum", "exclusiveMaximum", "const"},
        "array": {"maxItems"},
        "object": {"properties", "maxProperties"},
    }
    kind = node.get("type")
    if isinstance(kind, str) and kind in ends and not ends[kind] & node.keys():
        yield where
    if "maxProperties" in node and not {"propertyNames", "patternProperties"} & node.keys():
        yield f"keys of {where}"
    for key, inner in node.items():
        yield from unbounded(inner, f"{where}.{key}")


def test_every_leaf_of_a_row_has_an_end_and_can_be_written() -> None:
    """A half surrogate in a text without a type of its own was taken, and then no file could hold it."""
    assert list(unbounded(Result.model_json_schema())) == []


def test_half_a_surrogate_in_a_telling_is_a_question_mark() -> None:
    told = {"telemetry": [{"throttle": ["\ud800"]}], "likeness": {"\ud800": 0.5}}
    row = Result(**result().model_dump() | told)
    assert record.parse(record.to_line(row).encode()).telemetry[0].throttle == ("?",)
    assert row.likeness == {"?": 0.5}


@pytest.mark.parametrize("change", [{"picture": []}, {"heads_a_line": 10**4299}])
def test_a_picture_that_cannot_be_drawn_is_no_row(change: dict[str, object]) -> None:
    """`show`, a campaign's view and `replay` ended at it; a node's made its unit's rows vanish."""
    with pytest.raises(ValueError, match=r"at least 1 item|less than"):
        Mismatch.model_validate(json.loads(mismatch().model_dump_json()) | change)


@pytest.mark.parametrize("where", [("output",), ("draw", "distribution"), ("wrong_outputs", 0)])
def test_what_is_said_of_a_wrong_output_gives_no_order(where: tuple[str | int, ...]) -> None:
    """`show` and `replay` printed it to the terminal as it came."""
    told = json.loads(mismatch().model_dump_json())
    inner = told
    for step in where[:-1]:
        inner = inner[step]
    inner[where[-1]] = "\x1b[2J"
    with pytest.raises(ValueError, match="should match pattern"):
        Mismatch.model_validate(told)


@pytest.mark.parametrize(
    ("endings", "code"),
    [
        ([], 0),  # --resume, and nothing was left
        (["PASSED"], 0),
        (["PASSED", "UNSUPPORTED"], 0),  # the shapes that it claims
        (["UNSUPPORTED", "UNSUPPORTED"], 3),
        (["UNAVAILABLE"], 3),
        (["UNSTABLE", "CONTENDED"], 3),
        (["PASSED", "CRASHED"], 1),
        (["UNSUPPORTED", "INCORRECT", "HARNESS_ERROR"], 1),
        (["PASSED", "HARNESS_ERROR"], 2),
    ],
)
def test_exit_code_of_endings(endings: list[str], code: int, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(result("sdpa", kind=Kind.BASELINE))  # that a baseline passed says nothing
    store.save(result("other", kind=Kind.BASELINE, status=Status.CRASHED))
    for ending in endings:
        store.save(result(status=Status(ending)))
    assert store.exit_code() == code


def test_a_key_that_nobody_knows_is_told_in_one_harmless_line(tmp_path: Path) -> None:
    body = record.to_line(result("mine"))[: -record.CRC_BYTES]
    key = json.dumps("\x1b]0;owned\x07\x1b[2Jk\n::error::x ##[group]")
    line = f"{body},{key}:1".encode()
    line += b',"crc32":"%08x"}' % zlib.crc32(line)
    (tmp_path / "x.jsonl").write_bytes(line + b"\n")
    _, bad = load(tmp_path)
    (told,) = map(str, bad)
    assert told.isprintable()
    assert "##[" not in told


def test_of_many_wrong_keys_few_errors_are_kept() -> None:
    """Of each key pydantic kept one, and a line of 16 MiB held 2 GiB for 12 s."""
    line = record.to_line(result())
    body = line[:-1].rpartition(',"crc32"')[0]
    for changed in (
        body + "".join(f',"k{i}":0' for i in range(2000)),
        body.replace('"samples":[]', f'"samples":[{",".join(["{}"] * 2000)}]'),
    ):
        raw = f'{changed},"crc32":"{zlib.crc32(changed.encode()):08x}"}}'.encode()
        with pytest.raises(ValueError, match=r".") as error:
            record.parse(raw)
        cause = error.value.__cause__
        assert not isinstance(cause, ValidationError) or cause.error_count() < 10


def test_what_is_wrong_with_a_line_is_told_without_writing_out_what_it_holds() -> None:
    """Of one of 31 MiB pydantic wrote all of it for each of 37 fields that it lacked."""

    written = []

    class Odd:
        def __repr__(self) -> str:
            written.append(self)
            return "odd"

    with pytest.raises(ValidationError) as error:
        Result.model_validate({"mismatch": {"draw": Odd()}})
    assert record._reason(error.value) == "run: Field required"
    assert not written


FA3 = load_suite("fa3", ROOT / "configs")
DRAWN = hidden_cases(FA3.cases, 2, Secret(b"\1" * 32).seed, get_problem(FA3.problem))


def of_fa3(case: Case, **changes: Any) -> str:
    """A line of `case` under fa3's name and hash."""
    told = {"suite_sha256": FA3.sha256, "secret": "01" * 32, "config": case.name, "case": case}
    return record.to_line(result().model_copy(update=told | changes))


def test_a_row_of_a_suite_s_hash_is_of_a_case_that_it_asks() -> None:
    """A shape of its writer's stood first on the board, and came out SAME."""
    first, drawn = FA3.cases[0], DRAWN[-1]
    older = drawn.model_copy(update={"burst": drawn.burst + 1})  # by an older rule: shapes.py
    for case in (*FA3.cases, *DRAWN, older):
        assert record.parse(of_fa3(case).encode()).case == case
    short = first.model_copy(update={"seqlen": 256})
    for line in (
        of_fa3(short),
        of_fa3(first.model_copy(update={"burst": first.burst + 1})),
        of_fa3(first.model_copy(update={"name": "hdim64"})),
        of_fa3(first, suite="another"),
        of_fa3(first, problem="attention_backward"),
        of_fa3(first.model_copy(update={"name": drawn.name})),
        of_fa3(drawn, secret="02" * 32),
        of_fa3(drawn.model_copy(update={"name": "hidden_hdim64_99"})),
    ):
        with pytest.raises(ValueError, match="no case of fa3, whose hash it has"):
            record.parse(line.encode())
    for line in (of_fa3(short, suite_sha256="0" * 64), of_fa3(older, secret="")):
        assert not is_asked(record.parse(line.encode()))


def test_no_folder_is_too_deep_and_no_line_endless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either ended every command that reads records, by RecursionError and by MemoryError."""
    path = write_all(tmp_path, run_of({"mine": 0.9}))
    good, _ = record.heads(tmp_path)
    deep = tmp_path
    while len(str(deep)) < 3000:  # of the 4095 that a path may have
        deep /= "a"
        deep.mkdir()
    path.rename(deep / path.name)
    (tmp_path / "x.jsonl").touch()
    os.truncate(tmp_path / "x.jsonl", 1 << 40)
    monkeypatch.setattr(record, "MOST_LINE_BYTES", 1 << 20)
    found, (bad,) = record.heads(tmp_path)
    assert [head.number for head in found] == [head.number for head in good]
    assert str(bad).endswith("x.jsonl:1: more than 1 MiB; the file is read no further")
    assert [head.line() for head in found]
    assert remove_tree(tmp_path / "a")  # pytest's own recurses


def test_of_a_hidden_row_only_its_own_shape_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 of each headdim for each line: a folder of 1 MiB held every command for five minutes."""
    drawn: list[str] = []
    monkeypatch.setattr(suites, "number_of", lambda _, what: drawn.append(what) or 7)
    for name in ("hidden_hdim64_16", "hidden_hdim64_99", "hidden_hdim64_0", "hidden_hdim80"):
        case = DRAWN[0].model_copy(update={"name": name, "headdim": int(name[11:13])})
        with pytest.raises(ValueError, match="no case of fa3, whose hash it has"):
            record.parse(of_fa3(case).encode())
    assert drawn == [f"hidden/64/16/{what}" for what in DRAWS]


@pytest.mark.parametrize("key", ["integrity", "speedup", "source_sha256"])
def test_a_front_that_says_otherwise_than_its_line_is_no_row(tmp_path: Path, key: str) -> None:
    """Told behind the samples, it is in no front: a history drew an unlocked row without a mark."""
    (told,) = (r for r in run_of({"mine": 0.9}, configs=("hdim64_seq4k",)) if r.entry == "mine")
    told = told.model_copy(update={"integrity": "unlocked/2", "source_sha256": "a"})
    fields = json.loads(record.to_line(told))
    fields[key] = fields.pop(key)
    (tmp_path / "x.jsonl").write_text(of_fields(fields))
    heads, bad = record.heads(tmp_path)
    assert (len(heads), bad) == (1, [])
    assert record.whole(heads) == []


def test_a_damaged_copy_of_a_line_hides_no_row_beside_others(tmp_path: Path) -> None:
    """Who was beaten in a run was tied, and a library was not there, by a front behind theirs."""
    path = write_all(tmp_path, run_of({"mine": 0.9, "theirs": 0.902}))
    heads, _ = record.heads(tmp_path)
    rows, _ = record.read(heads)
    (board,) = leaderboard(rows).boards
    by_name = {row.entry: row for row in board.rows}
    asked = (by_name["mine"], by_name["theirs"], board.configs)

    def found(heads: list[record.Head]) -> tuple[object, ...]:
        libraries = query.Libraries(heads)
        (mine,) = (r for r in rows if (r.entry, r.config) == ("mine", "hdim64_seq4k"))
        beside = [other.entry for _, other in libraries.newest(mine)]
        return (query.SharedRuns(heads)(*asked), [r.entry for r in libraries(mine)], beside)

    before = found(heads)
    late = {"samples": "none", "date": "2026-11-22"}
    for n, changes in enumerate((late, {"samples": "none"})):
        lines = (forged(row, **changes) for row in rows)
        (tmp_path / "nvidia-h200" / f"x{n}.jsonl").write_text("".join(lines))
    files = [path, *sorted(path.parent.glob("x*"))]
    path.write_bytes(b"".join(file.read_bytes() for file in files))
    heads, bad = record.heads(tmp_path)
    assert (len(heads), bad) == (5 * len(rows), [])
    assert found(heads) == before
    copies = [head for head in heads if (head.entry, head.config) == ("mine", "hdim64_seq4k")]
    assert record.last(copies) in rows
    assert len(copies) == 1, "what is no row is read once"
    assert record.last([]) is None
    assert before[0]
    assert before[1:] == (["sdpa_cudnn"], ["sdpa_cudnn"])


def test_a_file_of_bad_lines_is_read_no_further(tmp_path: Path) -> None:
    """8 KB of a tar, as lines of two bytes each, held every command for minutes."""
    path = write_all(tmp_path, run_of({"mine": 0.9}))
    good = path.read_bytes()
    path.write_bytes(b"x\n" * 99 + good)
    heads, bad = record.heads(tmp_path)
    assert (len(heads), len(bad)) == (good.count(b"\n"), 99)
    (tmp_path / "x.jsonl").write_bytes(b"x\n" * 100_000)
    again, bad = record.heads(tmp_path)
    assert (again, len(bad)) == (heads, 99 + 101)
    assert str(bad[-1]).endswith(
        "x.jsonl:101: too many bad lines before it; the file is read no further"
    )


def test_a_line_of_more_lists_than_a_row_has_is_not_made(tmp_path: Path) -> None:
    """32 MiB of them, 32 KB of a tar, took 7 s and 1.7 GiB of whoever read it, a campaign too."""
    for each, many in ((b"[]", 600_000), (b"{}", 600_000)):
        body = record.to_line(result()).encode()[: -record.CRC_BYTES]
        body = body.replace(b"{", b'{"x":[%b0],' % ((each + b",") * many), 1)
        line = body + b',"crc32":"%08x"}' % zlib.crc32(body)
        with pytest.raises(ValueError, match="more lists than a row"):
            record.parse(line)
        (tmp_path / "x.jsonl").write_bytes(line)
        (bad,) = record.heads(tmp_path)[1]
        assert bad.reason.endswith("more lists than a row")


def test_of_a_suite_that_nobody_knows_no_more_shapes_count_than_one_can_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands, hidden or not, held `rank` for minutes: work went over pairs of them.

    Of each file for itself: names of a stranger's, read first, left none for an honest board's.
    """
    monkeypatch.setattr(record, "MOST_CASES", 3)
    monkeypatch.setattr(record, "MOST_HIDDEN", 1)
    first = FA3.cases[0]
    asked = [first.model_copy(update={"name": name}) for name in "abcdefa"]
    for name, sha256 in (("unknown", "0" * 64), ("another", "1" * 64), ("known", FA3.sha256)):
        text = "".join(f"{of_fa3(case, suite_sha256=sha256)}\n" for case in asked)
        (tmp_path / f"{name}.jsonl").write_text(text)
    strange = (first.model_copy(update={"name": f"strange{n}"}) for n in range(4))
    text = "".join(f"{of_fa3(case, suite_sha256='0' * 64)}\n" for case in strange)
    (tmp_path / "a_stranger.jsonl").write_text(text)
    found, bad = record.heads(tmp_path)
    told = [[h.config for h in found if h.path.stem == n] for n in ("unknown", "another", "known")]
    assert told == [[*"abcda"], [*"abcda"], [*"abcdefa"]], "of known ones the whole line tells"
    assert [(line.path.stem, line.number) for line in bad] == [
        *(("another", n) for n in (5, 6)),
        *(("unknown", n) for n in (5, 6)),
    ]
    assert {line.reason for line in bad} == {
        "its suite is unknown and no suite asks so many shapes"
    }
    assert not record.read([h for h in found if h.path.stem == "known"])[0]


def test_a_row_of_another_file_speaks_for_no_run(tmp_path: Path) -> None:
    """Whoever said the name of an honest run was its baseline, or a library faster than all."""
    write_all(tmp_path, [aged(r) for r in run_of({"mine": 0.9, "theirs": 0.95})])

    def said() -> list[object]:
        heads, _ = record.heads(tmp_path)
        found, _ = query.boards_from(heads)
        (row,) = (row for board in found.boards for row in board.rows if row.entry == "mine")
        beside = [[r.entry for _, r in found.libraries.newest(result)] for result in row.results]
        pairs = find_pairs("mine", "theirs", heads)
        return [row.speedup, beside, pairs, [p for p in history(heads) if p.entry == "mine"]]

    before, own, handed = said(), load(tmp_path)[0], list[Result]()
    for name, source in {"sdpa_cudnn": "sdpa_cudnn", "lib": "sdpa_cudnn", "theirs": "mine"}.items():
        for row in (r for r in own if r.entry == source):
            half = (s.model_copy(update={"calls_ms": (s.latency_ms / 2,) * 4}) for s in row.samples)
            handed.append(row.model_copy(update={"entry": name, "samples": tuple(half)}))
    (tmp_path / "zz.jsonl").write_text("\n".join(map(record.to_line, handed)))
    assert said() == before
    handed, _ = record.read(record.heads(tmp_path / "zz.jsonl")[0])
    assert rivals.neighbours(own[0], own) == rivals.neighbours(own[0], [*own, *handed])
    assert not rivals.direct_on(own[1], handed[0])


def aged(told: Result) -> Result:
    """The same with an interval of an older rule: it is made again from its baseline's row."""
    speedup = told.speedup and told.speedup.model_copy(update={"rule": stats.INTERVAL_RULE - 1})
    return told.model_copy(update={"speedup": speedup})
