"""Processes: they end, all of them; their words are cleaned; their environment is an allow-list.

Nobody reads our memory, nothing that was started stays behind.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.process import child as child_module
from harness.process import process_tree, wire
from harness.process.child import (
    LOG_BYTES,
    LOG_TAIL_BYTES,
    STOPPING_MS,
    Child,
    Jail,
    Log,
    untrusted_env,
)
from harness.process.sandbox import enter, namespaces, usage
from harness.process.text import plain_text, unordered


def test_text_of_strangers_is_plain() -> None:
    dirty = "\x1b[31mred\x1b[0m\n::set-output name=x::1\nfine\x07\r"
    assert plain_text(dirty) == "red\n: :set-output name=x::1\nfine"
    assert plain_text("a.cu(3): ::cuda::ptx is\n\tstd::x") == "a.cu(3): ::cuda::ptx is\n\tstd::x"


@given(
    st.lists(
        st.sampled_from(
            ["::", ":", "##[", "#", "[", "##vso[", "\n", "\r", " ", "\t", "\x01", "\x1b[1m", "\x1b"]
            + ["\x9b", "\x85", "\x0b", "\u2028", "\u202e", "\ufeff", "\xa0", "\ue000", "é"]
        ),
        max_size=12,
    ).map("".join)
)
def test_no_line_of_a_stranger_is_an_order_to_a_ci_runner(dirty: str) -> None:
    plain = plain_text(dirty)
    assert plain_text(plain) == plain
    for told in (plain, unordered(dirty)):
        assert not re.search(r"##\w*\[", told)
        assert not any(line.lstrip().startswith("::") for line in re.split("[\r\n]", told))
    assert not any(c in "\x1b\u202e\ufeff\u2028" or "\x80" <= c < "\xa0" for c in plain)


def test_what_an_order_is_stands_in_one_place() -> None:
    home = Path(__file__).parents[2]
    files = [path for at in ("harness", ".github/scripts") for path in (home / at).rglob("*.py")]
    told = [path.name for path in files if re.search(r"#[^\w\s]*#\S*\[", path.read_text())]
    assert told == ["text.py"]
    assert (home / "harness" / "process" / "text.py").read_text().count("MARK = ") == 1


def test_the_environment_is_an_allow_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("GITHUB_TOKEN", "x")
    jail = Jail(
        cache=tmp_path,
        scratch=tmp_path,
        env={"TRITON_INTERPRET": "1"},
        source=tmp_path,
        house=tmp_path,
    )
    env = untrusted_env(jail)
    assert "AWS_SECRET_ACCESS_KEY" not in env
    assert "GITHUB_TOKEN" not in env
    assert env["HOME"] == env["ATTNBOARD_CACHE"] == str(tmp_path)
    assert env["TRITON_INTERPRET"] == "1"


def test_a_child_that_ends_says_how() -> None:
    child = Child("harness.no_such_module", [], None)
    assert child.ending(20) == "exited with code 1"
    assert "no_such_module" in child.log_tail()
    child.end()


def test_a_killed_child_is_told_by_its_signal() -> None:
    child = Child("http.server", ["--help"], None)
    child.pause()
    child.end()
    assert not child.alive


FORKS = """
import os, time
if os.fork():
    os._exit(3)
os.close(1)
time.sleep(60)
"""


def test_who_was_waited_for_is_not_touched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number can be anybody's: a second end of a worker killed a process of another's."""
    (tmp_path / "forks.py").write_text(FORKS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process_tree.adopt_orphans()
    child = Child("forks", [], None)
    assert child.ending(20) == "exited with code 3"
    assert usage.states(child.pid) == "Z", "to look at it gives its number to nobody"
    (left,) = (
        pid
        for pid in process_tree.children(os.getpid())
        if os.getpgid(pid) == child.pid and pid != child.pid
    )
    child.end()
    assert os.waitpid(left, 0)[1] == signal.SIGKILL
    assert usage.states(child.pid) == ""
    touched: list[object] = []
    monkeypatch.setattr(os, "kill", lambda *told: touched.append(told))
    monkeypatch.setattr(os, "killpg", lambda *told: touched.append(told))
    monkeypatch.setattr(process_tree, "descendants", lambda pid: [pid])
    for again in (child.kill, child.pause, child.resume, child.end):
        again()
    assert (touched, child.pids()) == ([], [])
    assert child.ending(0) == "exited with code 3"


HOLDS_ON = """
import os, socket, sys, time
from harness.process import wire
line = socket.socket(fileno=int(sys.argv[2]))
wire.send(line, {"pid": os.getpid()})
if os.fork():
    os._exit(3)
os.setsid()
time.sleep(60)
"""


def test_a_fork_that_holds_the_line_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge waited for it to its deadline, and nobody looked at what it took meanwhile."""
    (tmp_path / "holds_on.py").write_text(HOLDS_ON)
    monkeypatch.setattr(child_module, "HOME", tmp_path)
    (tmp_path / "harness").symlink_to(ROOT / "harness")
    process_tree.adopt_orphans()
    before = process_tree.children(os.getpid())
    child = Child("holds_on", [], None)
    with child.line.dup() as judges:
        assert child.ending(20) == "exited with code 3"
        child.hang_up()
        assert wire.receive(judges, 20) == {"pid": child.pid}, "what it said before is heard"
        with pytest.raises(wire.PeerClosed):
            wire.receive(judges, 20)
        with pytest.raises(wire.PeerClosed):
            wire.send(judges, {})
    child.end()
    child.hang_up()
    orphans = {*process_tree.children(os.getpid())} - set(before)
    process_tree.sweep(before)
    assert (len(orphans), {*process_tree.children(os.getpid())} & orphans) == (1, set())


BURNS = """
import os, signal, time
signal.signal(signal.SIGUSR1, lambda *_: os.fork() or time.sleep(60))
print("runs", flush=True)
while True:
    time.process_time()
"""


def test_who_is_launched_ends_first_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without root the first words to a process that begins are refused, and the watch ended it."""
    if enter.lacking(1):
        pytest.skip("needs level 1")
    really, refused = enter.end_first, iter([True] * 3)
    monkeypatch.setattr(enter, "end_first", lambda pid: next(refused, False) or really(pid))
    jail = Jail(tmp_path, tmp_path, {}, tmp_path, tmp_path, level=1)
    child = Child("http.server", [], jail)
    try:
        assert not usage.outlives_us(child.pid)
        assert next(refused, None) is None
    finally:
        child.end()


@pytest.fixture
def burning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    (tmp_path / "burns.py").write_text(BURNS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    child = Child("burns", [], None)
    while not child.log.printed:
        time.sleep(0.001)
    yield child
    child.end()


def test_who_runs_on_while_it_is_stopped_is_found(burning: Child) -> None:
    assert burning.ran_paused() == "", "it is not stopped yet"
    burning.pause()
    time.sleep(0.05)
    assert burning.ran_paused() == ""
    os.kill(burning.pid, signal.SIGCONT)
    started = time.monotonic()
    while not (said := burning.ran_paused()) and time.monotonic() < started + 20:
        time.sleep(0.001)
    assert "although they were stopped" in said
    assert int(re.findall(r"ran for (\d+) ms", said)[0]) >= STOPPING_MS
    burning.resume()
    assert burning.ran_paused() == ""


def test_who_ends_while_it_is_stopped_was_woken(burning: Child) -> None:
    """It burnt a rival's turn, then killed itself before anybody looked: nothing was said of it."""
    burning.pause()
    os.kill(burning.pid, signal.SIGKILL)
    while burning.alive:
        time.sleep(0.001)
    assert burning.ran_paused() == "it ended although it was stopped"
    burning.pause()
    assert burning.ran_paused() == "", "it ended before it was to stop"


def test_who_wakes_himself_is_told_again_to_stop(
    burning: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a SIGCONT of each other's: it won the race against one SIGSTOP and had two seconds."""
    monkeypatch.setattr(child_module, "WAITING_S", 0.01)
    monkeypatch.setattr(child_module, "STOPPING_S", 60.0)
    asked, real = list[bytes](), burning._signal
    burning.first, there = socket.socketpair()

    def stops_at_third(word: bytes) -> bool:
        asked.append(word)
        if len(asked) == 3:
            real(signal.SIGSTOP)
        return True

    monkeypatch.setattr(burning, "_asked", stops_at_third)
    with there:
        burning.pause()
    assert asked[:3] == [namespaces.STOP] * 3
    assert set(usage.states(burning.pid)) == {"T"}


def test_who_is_on_its_way_out_is_waited_for(
    burning: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not to be stopped, and used to be taken for one that ran although it was."""
    told, seen = iter(["R", "RT", "D", "TtZXS"]), []
    monkeypatch.setattr(usage, "states", lambda pid: seen.append(next(told)) or seen[-1])
    burning.pause()
    assert seen == ["R", "RT", "D", "TtZXS"]


VFORKS = """
import os, sys
os.mkfifo(sys.argv[-1])
print("begun", flush=True)
# The child opens a pipe that nobody writes to before it begins, and its parent waits for that.
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[-1], os.O_RDONLY, 0)])
"""


def test_who_waits_in_the_kernel_holds_up_no_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vforks.py").write_text(VFORKS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(child_module, "STOPPING_S", 30.0)
    child = Child("vforks", [str(tmp_path / "pipe")], None)
    try:
        while usage.states(child.pid) != "d":
            assert child.alive, child.log_tail()
            time.sleep(0.001)
        begun = time.monotonic()
        child.pause()
        assert time.monotonic() < begun + 15
        assert usage.states(child.pid) == "d", "as long as its child does not begin"
        assert child.ran_paused() == ""
    finally:
        child.end()


def test_what_the_first_process_spends_to_answer_holds_up_no_stop(
    burning: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "STOPPING_S", 10.0)
    monkeypatch.setattr(burning, "_asked", lambda word: True)
    monkeypatch.setattr(usage, "states", lambda pid: "S")
    spends = itertools.count()
    monkeypatch.setattr(usage, "cpu_ns", lambda pids: {pid: next(spends) for pid in pids})
    burning.ours, begun = 1, time.monotonic()
    burning.pause()
    assert time.monotonic() < begun + 5


def test_what_the_first_process_spends_to_answer_is_nobody_s_running(
    burning: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked behind some thirty turns of others it had spent 10 ms: an honest entrant was ended."""
    os.kill(burning.pid, signal.SIGUSR1)
    while len(burning.pids()) < 2:
        time.sleep(0.001)
    burning.ours = 1
    monkeypatch.setattr(burning, "_asked", lambda word: False)
    burning.pause()
    os.kill(burning.pid, signal.SIGCONT)
    begun_ns = usage.cpu_ns([burning.pid])[burning.pid]
    while usage.cpu_ns([burning.pid])[burning.pid] < begun_ns + 30e6:
        assert burning.ran_paused() == ""
        time.sleep(0.001)


def test_an_end_that_is_over_is_no_running(burning: Child) -> None:
    os.kill(burning.pid, signal.SIGUSR1)
    while len(pids := burning.pids()) < 2:
        time.sleep(0.001)
    forked = pids[1]
    os.kill(forked, signal.SIGKILL)
    while usage.states(forked) != "Z":
        time.sleep(0.001)
    burning.pause()
    assert forked in burning.pids(), "nobody waits for it"
    assert burning._paused_ns is not None
    assert burning._paused_ns.keys() == {burning.pid}
    assert burning.ran_paused() == ""


def test_a_process_that_begins_while_all_are_stopped_is_found(
    burning: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "STOPPING_MS", 1e9)
    burning.pause()
    assert burning.ran_paused() == ""
    os.kill(burning.pid, signal.SIGUSR1)
    os.kill(burning.pid, signal.SIGCONT)
    started = time.monotonic()
    while not (said := burning.ran_paused()) and time.monotonic() < started + 20:
        time.sleep(0.001)
    assert said == "a process of it began or ended although they were stopped"


def test_a_process_that_begins_and_ends_between_two_looks_is_found(
    burning: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody accounts for its CPU time: the first process of its namespaces tells of it."""
    said = [b"7", b"7", b"", b"8"]
    burning.first, there = socket.socketpair()
    monkeypatch.setattr(burning, "_asked", lambda word: False)
    monkeypatch.setattr(namespaces, "newest", lambda line: said.pop(0))
    with there:
        burning.pause()
        assert burning.ran_paused() == ""
        assert burning.ran_paused() == "", "the first process is silent"
        assert burning.ran_paused() == "a process of it began or ended although they were stopped"


@pytest.mark.parametrize("asked_before", [1, 40])
def test_an_answer_that_came_too_late_answers_no_other_word(
    monkeypatch: pytest.MonkeyPatch, asked_before: int
) -> None:
    """It came behind the next question, or with too many others: all were killed."""
    ours, first = socket.socketpair()
    with ours, first:
        monkeypatch.setattr(namespaces, "ANSWER_S", 0.001)
        for _ in range(asked_before):
            assert namespaces.newest(ours) == b""
        monkeypatch.setattr(namespaces, "ANSWER_S", 20.0)
        with ThreadPoolExecutor(2) as pool:
            asked = pool.submit(namespaces.ask, ours, namespaces.GO)
            words = [_answered(first) for _ in range(asked_before + 1)]
            assert asked.result(timeout=5)
            assert words == [namespaces.NEWEST] * asked_before + [namespaces.GO]
            told = pool.submit(namespaces.newest, ours)
            _answered(first)
            assert told.result(timeout=5) == b"12345678"


def _answered(first: socket.socket) -> bytes:
    """The word that the first process was told, and has answered."""
    said = first.recv(1 + namespaces.MARK_BYTES)
    first.send(said[1:] + b"12345678")
    return said[:1]


def test_whose_first_process_is_silent_is_ended(
    burning: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped one by one, who forks all the time ran in all others' turns, and nobody saw it."""
    burning.first, there = socket.socketpair()
    monkeypatch.setattr(namespaces, "ask", lambda line, word: False)
    with there:
        burning.pause()
    assert not burning.alive
    assert burning.first is None


def test_the_first_process_tells_of_one_that_has_ended() -> None:
    ours, theirs = socket.socketpair()
    first = os.fork()
    if first == 0:
        ours.close()
        second = os.fork()
        if second == 0:
            process_tree.die_with_parent()
            signal.pause()
        namespaces._serve(second, theirs.fileno())
    theirs.close()
    try:
        before = namespaces.newest(ours)
        between = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ)
        os.waitpid(between, 0)
        after = namespaces.newest(ours)
    finally:
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
        ours.close()
    assert len(before) == len(after) == namespaces.TOLD_BYTES
    assert before != after
    assert namespaces.newest(ours) == b""


def test_a_control_group_is_frozen_behind_the_stop_and_thawed_before_it_goes_on(
    burning: Child,
) -> None:
    steps: list[object] = []
    burning.group = SimpleNamespace(  # type: ignore[assignment]
        freeze=steps.append, kill=lambda: None, remove=lambda: None
    )
    burning._asked = lambda word: bool(steps.append(word)) or True  # type: ignore[method-assign]
    burning.pause()
    burning._stop()  # as another pause does
    burning.resume()
    assert steps == [namespaces.STOP, True, False, namespaces.GO], "who is frozen is not asked"


def test_a_log_keeps_the_last_words_and_cannot_grow() -> None:
    log = Log()
    assert (log.printed, log.tail()) == (0, "")
    theirs = os.dup(log.fd)
    os.write(theirs, b"x" * LOG_TAIL_BYTES + b"\x1b[1mlast")
    assert log.printed == LOG_TAIL_BYTES + 8
    assert log.tail() == "x" * (LOG_TAIL_BYTES - 8) + "last"
    with pytest.raises(PermissionError):
        os.posix_fallocate(theirs, LOG_BYTES, 1)
    keep_size = 1
    allocate = ctypes.CDLL(None, use_errno=True).fallocate64
    assert allocate(theirs, keep_size, ctypes.c_long(LOG_BYTES), ctypes.c_long(1)) == -1
    for change in (lambda: os.truncate(theirs, 0), lambda: os.truncate(theirs, 1 << 30)):
        with pytest.raises(PermissionError):
            change()
    os.lseek(theirs, 1 << 40, os.SEEK_SET)
    assert log.printed == LOG_BYTES
    assert log.full == "printed 64 MiB, allowed less"
    with pytest.raises(PermissionError):
        os.write(theirs, b"x")
    os.close(theirs)


@pytest.mark.parametrize(
    ("number", "words"), [(9, "killed by SIGKILL"), (35, "killed by signal 35")]
)
def test_a_signal_without_a_name_is_told_by_its_number(number: int, words: str) -> None:
    child = Child("http.server", ["--help"], None)
    os.kill(child.pid, number)
    assert child.ending(20) == words
    child.end()


# --------------------------------------------------------------------------- process_tree

ROOT = Path(__file__).resolve().parents[2]


def python(code: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter: these calls change the process that makes them."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_number_that_is_somebody_elses_by_now_is_not_signalled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hundreds that ended as they were listed: their numbers came round to a rival's threads."""
    killed: list[int] = []
    mine, begun_again = [b"1", b"10"], [b"1", b"30"]
    told = {7: [mine, mine], 8: [mine, begun_again], 9: [[b"2", b"10"]]}  # 9: another one's child
    told |= {10: [list[bytes]()], 11: [mine, list[bytes]()]}  # which have ended
    monkeypatch.setattr(process_tree, "children", lambda pid: [*told] if pid == 1 else [])
    monkeypatch.setattr(process_tree, "_born", lambda pid: told[pid].pop(0))
    monkeypatch.setattr(process_tree.os, "kill", lambda pid, _: killed.append(pid))
    process_tree.signal_tree(1, process_tree.signal.SIGKILL)
    assert killed == [7]


def test_children_and_descendants_see_a_process_in_another_session() -> None:
    code = "import os,time\nif os.fork()==0:\n os.setsid()\n time.sleep(30)\ntime.sleep(30)"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        deadline = time.monotonic() + 20
        while not (found := process_tree.children(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.01)
        (child,) = found
        while os.getsid(child) == os.getsid(process.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert os.getsid(child) != os.getsid(process.pid)
        assert set(process_tree.descendants(os.getpid())) >= {process.pid, child}
    finally:
        process_tree.signal_tree(process.pid, process_tree.signal.SIGKILL)
        process.kill()
        process.wait()


DAEMON = """
import os, subprocess, sys, time
from harness.process import process_tree
assert process_tree.adopt_orphans()
before = process_tree.children(os.getpid())
escape = "import os,time\\nif os.fork()==0:\\n os.setsid()\\n if os.fork()==0:\\n  time.sleep(60)"
subprocess.run([sys.executable, "-c", escape], check=True)
deadline = time.monotonic() + 20
while not process_tree.children(os.getpid()) and time.monotonic() < deadline:
    time.sleep(0.01)
orphans = process_tree.children(os.getpid())
process_tree.sweep(before)
print(len(orphans), process_tree.children(os.getpid()))
"""


def test_a_double_fork_is_adopted_and_swept() -> None:
    done = python(DAEMON)
    orphans, left = done.stdout.split()
    assert (int(orphans) >= 1, left) == (True, "[]"), done.stderr


def test_sweep_leaves_what_it_knows() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
    try:
        process_tree.sweep(process_tree.children(os.getpid()))
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_private_means_not_dumpable() -> None:
    code = (
        "import ctypes\nfrom harness.process import process_tree\nassert process_tree.set_undumpable()\n"
        "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    )
    assert python(code).stdout.strip() == "0"


def test_private_keeps_an_ordinary_user_out() -> None:
    if os.getuid() != 0:
        pytest.skip("needs root to become an ordinary user")
    code = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
from harness.process import process_tree
os.setuid(65534)
def readable():
    pid = os.getpid()
    if os.fork() == 0:
        try:
            open(f"/proc/{{pid}}/mem", "rb").close()
            os._exit(1)
        except OSError:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.wait()[1])
process_tree.libc.prctl(4, 1, 0, 0, 0)
open_before = readable()
process_tree.set_undumpable()
print(open_before, readable())
"""
    assert python(code).stdout.split() == ["1", "0"]


def test_how_long_looks_at_it_stopped_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child.__new__(Child)
    child.signalled, child._paused_ns, child.on_turn = threading.RLock(), None, False
    child.held_s = 1.0
    for name in ("_stop", "resume"):
        monkeypatch.setattr(Child, name, lambda _: None)
    with child.still():
        time.sleep(0.01)
    assert (held_s := child.held_s) >= 1.01
    child._paused_ns = {}
    with child.still():
        time.sleep(0.01)
    assert child.held_s == held_s, "it was stopped anyway"


def test_who_is_needed_running_is_neither_stopped_nor_waited_for() -> None:
    """Locks of a GPU took 27 s, in which nobody counted what its processes took."""
    child = Child.__new__(Child)
    child.signalled, child.on_turn = threading.RLock(), False

    def look() -> bool:
        with child.still() as stopped:
            return stopped

    with ThreadPoolExecutor(1) as pool, child.signalled:
        assert pool.submit(look).result(timeout=5) is False


def test_who_is_on_turn_is_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rival that filled the disk had an honest worker stopped in its burst, and its lock late."""
    child = Child.__new__(Child)
    child.signalled, child._paused_ns, child.on_turn = threading.RLock(), None, True
    monkeypatch.setattr(Child, "_stop", lambda _: pytest.fail("it was stopped"))
    with child.still() as stopped, ThreadPoolExecutor(1) as pool:
        assert not stopped
        free = pool.submit(child.signalled.acquire, timeout=1)
        assert free.result(), "whoever locks it waits for no count of its files"
