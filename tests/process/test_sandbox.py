"""The walls hold: each probe is tried outside, where it works, and inside, where it must not."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.cli.commands import doctor
from harness.errors import UnavailableError, UsageError
from harness.process import process_tree
from harness.process.sandbox import enter, landlock, namespaces

ROOT = Path(__file__).resolve().parents[2]


def available(level: int) -> bool:
    try:
        enter.require(level)
    except UnavailableError:
        return False
    return True


needs_level_1 = pytest.mark.skipif(not available(1), reason="no Landlock in this kernel")
needs_level_2 = pytest.mark.skipif(not available(2), reason=enter.lacking(2))
each_level = pytest.mark.parametrize(
    "level", [pytest.param(1, marks=needs_level_1), pytest.param(2, marks=needs_level_2)]
)

PROBES = """
import ctypes, fcntl, json, os, signal, socket, subprocess, sys
parent, scratch, secret = int(sys.argv[1]), sys.argv[2], sys.argv[3]
mode, mtime = int(sys.argv[4]), float(sys.argv[5])
def moved(path, what, before):
    if getattr(os.stat(path), what) == before:
        raise OSError(0, "answered and not done")
libc = ctypes.CDLL(None, use_errno=True)
def call(value):
    if value < 0:
        raise OSError(ctypes.get_errno(), "refused")
def made(number):
    call(number)
    return number
def spans(pid):
    class Span(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
    here = ctypes.create_string_buffer(8)
    local, remote = Span(ctypes.addressof(here), 8), Span(id(None), 8)
    if libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) < 0:
        if ctypes.get_errno() != 14:
            raise OSError(ctypes.get_errno(), "refused")
def seize(pid):
    call(libc.ptrace(0x4206, pid, 0, 0))
    libc.ptrace(17, pid, 0, 0)
PROBES = {
    "read_secret": lambda: open(secret).read(),
    "write_secret": lambda: open(secret, "a").close(),
    "list_folder": lambda: os.listdir(os.path.dirname(secret)),
    "parent_environ": lambda: open(f"/proc/{parent}/environ", "rb").read(),
    "parent_cmdline": lambda: open(f"/proc/{parent}/cmdline", "rb").read(),
    "parent_memory": lambda: open(f"/proc/{parent}/mem", "rb").close(),
    "parent_fds": lambda: os.listdir(f"/proc/{parent}/fd"),
    "parent_vm": lambda: spans(parent),
    "ptrace": lambda: seize(parent),
    "signal": lambda: os.kill(parent, signal.SIGWINCH),
    "priority": lambda: os.setpriority(os.PRIO_PROCESS, parent, os.getpriority(0, parent)),
    "affinity": lambda: os.sched_setaffinity(parent, os.sched_getaffinity(parent)),
    "own_affinity": lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
    "tcp": lambda: socket.create_server(("127.0.0.1", 0)).close(),
    "netlink": lambda: socket.socket(16, socket.SOCK_RAW).close(),
    "udp": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close(),
    "shared_memory": lambda: open("/dev/shm/attnboard-probe", "w").close(),
    "tmp": lambda: open("/tmp/attnboard-probe", "w").close(),
    "scratch": lambda: open(scratch + "/file", "w").close(),
    "own_name": lambda: open(f"/proc/self/task/{os.getpid()}/comm", "w").write("probe"),
    "own_autogroup": lambda: open("/proc/self/autogroup", "w").close(),
    "own_child": lambda: subprocess.run([sys.executable, "-c", ""], check=True),
    "end_child": lambda: subprocess.Popen(["sleep", "9"]).kill(),
    "unix_socket": lambda: socket.socket(socket.AF_UNIX).close(),
    "libraries": lambda: __import__("decimal"),
    "null": lambda: open("/dev/null", "w").close(),
    "lock_of_processes": lambda: __import__("multiprocessing").Lock(),
    "stat_outside": lambda: os.stat(secret),
    "chmod_outside": lambda: (os.chmod(secret, 0o604), moved(secret, "st_mode", mode)),
    "utime_outside": lambda: (os.utime(secret, (1, 1)), moved(secret, "st_mtime", mtime)),
    "chown": lambda: os.chown(scratch + "/file", os.getuid(), os.getgid()),
    "xattr": lambda: os.setxattr(scratch + "/file", "user.a", b"b"),
    "set_user_id": lambda: os.close(os.open(scratch + "/s", os.O_CREAT | os.O_WRONLY, 0o4755)),
    "lease": lambda: fcntl.fcntl(os.open(scratch + "/file", 0), fcntl.F_SETLEASE, fcntl.F_RDLCK),
    "notice": lambda: fcntl.fcntl(os.open(scratch, 0), fcntl.F_NOTIFY, 1),
    "file_flags": lambda: fcntl.ioctl(os.open(scratch + "/file", 0), 0x40086602, bytes(8)),
    "own_lock": lambda: fcntl.flock(os.open(scratch + "/file", 0), fcntl.LOCK_EX),
    "sysv_memory": lambda: libc.shmctl(made(libc.shmget(0, 4096, 0o1666)), 0, None),
    "sysv_messages": lambda: libc.msgctl(made(libc.msgget(0, 0o1666)), 0, None),
    "user_namespace": lambda: call(libc.unshare(0x10000000)),
    "mount": lambda: call(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)),
    "kernel_settings": lambda: open("/proc/sys/kernel/ns_last_pid", "w").close(),
    "pressure_alarm": lambda: open("/proc/pressure/cpu", "r+").close(),
    "first_environ": lambda: open("/proc/1/environ").close(),
    "etc_secret": lambda: open("/etc/shadow").close(),
    "own_tmp": lambda: open("/tmp/attnboard-own", "w").close(),
}
told = {}
for name, probe in PROBES.items():
    try:
        probe()
        told[name] = "open"
    except OSError as error:
        told[name] = "shut"
print(json.dumps(told))
"""
SHOWS_LIMITS = """
import resource
for kind in (resource.RLIMIT_NICE, resource.RLIMIT_RTPRIO):
    assert resource.getrlimit(kind) == (0, 0)  # first where the host lets its user be
given = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
assert given == resource.getrlimit(resource.RLIMIT_CORE) in ((1, 1), (0, 0))
print(*resource.getrlimit(resource.RLIMIT_NPROC), *resource.getrlimit(resource.RLIMIT_NOFILE))
print(open("/proc/self/oom_score_adj").read(), *resource.getrlimit(resource.RLIMIT_SIGPENDING))
"""
LEAVES_AN_ORPHAN = """
import os
(told, tell), (ended, end) = os.pipe(), os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.read(ended, 1)
        os.write(tell, str(os.getppid()).encode())
    os._exit(0)
os.wait()
os.write(end, b"x")
print(os.getpid(), os.read(told, 99).decode())
"""
MUST_STAY_OPEN = {
    "scratch",
    "own_name",
    "own_affinity",
    "own_child",
    "own_lock",
    "end_child",
    "unix_socket",
    "libraries",
    "null",
}
#: At level 1 a process can tell that a file is there; at level 2 /tmp and /dev/shm are its own.
AT_LEVEL_1 = MUST_STAY_OPEN | {"stat_outside"}
AT_LEVEL_2 = MUST_STAY_OPEN | {"shared_memory", "tmp", "own_tmp", "lock_of_processes"}


def walled(rules: enter.Rules) -> enter.Rules:
    """`rules` for a user of their own, to whom root gives the folders to be written."""
    uid = namespaces.user_of("1234") if rules.level == 2 else None
    for folder in rules.rw if uid is not None else ():
        os.chown(folder, uid, uid)
    return dataclasses.replace(rules, uid=uid)


def run_walled(rules: enter.Rules, words: list[str]) -> subprocess.CompletedProcess[str]:
    """`words` behind `rules`, to their end."""
    line = enter.command(walled(rules), words)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=60, check=False)


def probe(tmp_path: Path, level: int) -> set[str]:
    """The probes that get through at `level`; they run in a child of this process."""
    scratch, secret, script = (
        tmp_path / "scratch",
        tmp_path / "secret" / "file",
        tmp_path / "probe.py",
    )
    scratch.mkdir(exist_ok=True)
    secret.parent.mkdir(exist_ok=True)
    secret.write_text("rival's source")
    script.write_text(PROBES)
    facts = secret.stat()
    words = [sys.executable, str(script), str(os.getpid()), str(scratch), str(secret)]
    words += [str(facts.st_mode), str(facts.st_mtime)]
    rules = enter.Rules(level=level, rw=(scratch,), ro=(script,), chdir=scratch)
    done = run_walled(rules, words)
    assert done.returncode == 0, done.stderr
    for folder in ("/dev/shm", "/tmp"):
        for left in Path(folder).glob("attnboard-[op]*"):
            left.unlink(missing_ok=True)
    told = json.loads(done.stdout)
    return {name for name, state in told.items() if state == "open"}


@needs_level_1
def test_level_1_shuts_every_door_and_leaves_work_possible(tmp_path: Path) -> None:
    assert probe(tmp_path, 1) == AT_LEVEL_1


@needs_level_2
def test_level_2_shuts_them_too_and_has_folders_of_its_own(tmp_path: Path) -> None:
    assert probe(tmp_path, 2) == AT_LEVEL_2


def test_the_probes_can_succeed(tmp_path: Path) -> None:
    always = {
        "read_secret",
        "write_secret",
        "list_folder",
        "parent_cmdline",
        "signal",
        "affinity",
        "udp",
        "netlink",
        "tmp",
        "stat_outside",
        "chmod_outside",
        "utime_outside",
        "chown",
        "set_user_id",
        "lease",
        "notice",
        "sysv_memory",
        "sysv_messages",
    }
    assert probe(tmp_path, 0) >= always | MUST_STAY_OPEN


@each_level
def test_what_is_counted_by_user_is_bounded_and_who_is_walled_in_ends_first(
    tmp_path: Path, level: int
) -> None:
    """Limits of this process are lower than the wanted ones: a quarter of them stays for the judge."""
    words = [sys.executable, "-c", SHOWS_LIMITS]
    rules = walled(enter.Rules(level=level, rw=(tmp_path,), chdir=tmp_path))
    line = enter.command(rules, words)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (1000, 1000))
        resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))

    done = subprocess.run(
        line, env=env, capture_output=True, text=True, timeout=60, check=False, preexec_fn=lower
    )
    assert done.stdout.split() == ["750", "750", "300", "300", "1000", "1024", "1024"], done.stderr
    wide = run_walled(enter.Rules(level=level, rw=(tmp_path,), open_files=99), words)
    assert wide.stdout.split()[2:5] == ["99", "99", "1000"], wide.stderr


def test_the_trusted_side_may_have_more_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (64, 4000))
    monkeypatch.setattr(resource, "setrlimit", lambda *words: told.append(words))
    enter.allow_more_files()
    assert told == [(resource.RLIMIT_NOFILE, (4000, 4000))]
    assert enter.most_processes(2048) == 2048
    assert enter.most_processes(1 << 20) == 3000


@pytest.mark.parametrize("strangers", [1, 2, 5, 20])
def test_all_together_leave_the_house_a_third_of_the_processes(
    monkeypatch: pytest.MonkeyPatch, strangers: int
) -> None:
    """One that stayed below its own bound left the fork server none, and the run ended for all."""
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY,) * 2)
    for room in (3000, 10_000, 32_768):
        monkeypatch.setattr(enter.cgroup, "room", lambda room=room: room)
        share = enter.share_of_processes(strangers)
        watched = share // 2
        assert watched >= enter.FEWEST_PROCESSES > os.cpu_count()  # type: ignore[operator]
        most = watched * (strangers - 1) + share
        assert most <= room * 2 / 3 or watched == enter.FEWEST_PROCESSES
    monkeypatch.setattr(enter.cgroup, "room", lambda: 1 << 22)
    assert enter.share_of_processes(strangers) == enter.Rules().processes, "as nearly everywhere"


@each_level
def test_who_has_a_user_of_its_own_is_held_to_its_share(tmp_path: Path, level: int) -> None:
    """The others' threads are of the judge's user too, and more than a share from the start."""
    rules = walled(enter.Rules(level=level, rw=(tmp_path,), processes=300))
    limit = run_walled(rules, [sys.executable, "-c", SHOWS_LIMITS]).stdout.split()[0]
    assert limit == str(300 if rules.uid is not None else enter.most_processes(2048))


@needs_level_1
def test_at_level_1_an_orphan_stays_below_its_worker(tmp_path: Path) -> None:
    done = run_walled(enter.Rules(level=1), [sys.executable, "-c", LEAVES_AN_ORPHAN])
    worker, parent = done.stdout.split()
    assert parent == worker, done.stderr


@each_level
def test_a_planted_module_does_not_run_before_the_walls(tmp_path: Path, level: int) -> None:
    """$HOME and the start folder are the entrant's; the launcher must import nothing from there."""
    home = tmp_path / "home"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for folder in (home / ".local" / "lib" / version / "site-packages", home):
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("usercustomize", "argparse", "resource"):
            (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    line = enter.command(walled(enter.Rules(level=level, rw=(home,), chdir=home)), ["/bin/true"])
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(home)}
    subprocess.run(line, env=env, check=True, timeout=60, cwd=tmp_path)
    assert not (tmp_path / "ran").exists()


@each_level
def test_files_have_a_limit(tmp_path: Path, level: int) -> None:
    code = f"import os; f = os.open({str(tmp_path / 'big')!r}, 65); os.write(f, b'x' * 2000)"
    code += "; os.write(f, b'x')"
    rules = enter.Rules(level=level, rw=(tmp_path,), file_bytes=1000)
    done = run_walled(rules, [sys.executable, "-c", code])
    assert done.returncode != 0
    assert (tmp_path / "big").stat().st_size <= 1000


@each_level
def test_a_folder_inside_another_keeps_its_own_right(tmp_path: Path, level: int) -> None:
    """A cache inside a readable folder; a source inside a cache is readable at level 2 alone."""
    readable, cache = tmp_path / "readable", tmp_path / "readable" / "cache"
    source = cache / "source"
    source.mkdir(parents=True)
    rules = enter.Rules(level=level, ro=(readable, source), rw=(cache,))
    code = "import sys\nfor p in sys.argv[1:]:\n  try: open(p + '/new', 'w').close(); print('open')"
    code += "\n  except OSError: print('shut')"
    words = [sys.executable, "-c", code, *map(str, (readable, cache, source))]
    told = run_walled(rules, words).stdout.split()
    assert told == ["shut", "open", "shut" if level == 2 else "open"]


@needs_level_2
def test_nobody_moves_the_way_to_what_he_was_given(tmp_path: Path) -> None:
    """The watch knows a folder by its name; without root what leads to it is the worker's own."""
    shown, scratch = tmp_path / "shown" / "cache", Path("/dev/shm/attnboard-one/two/scratch")
    shown.mkdir(parents=True)
    mine = (Path("/tmp/mine"), Path("/dev/shm/mine"))  # the probe can succeed
    ways = [way for path in (shown, scratch) for way in (path, *path.parents)]
    ways = [way for way in ways if way.is_relative_to("/tmp") or way.is_relative_to("/dev/shm")]
    code = "import os, sys\nfor path in sys.argv[1:]:\n  os.makedirs(path, exist_ok=True)"
    code += "\n  try: os.rename(path, path + '.moved'); print(path)\n  except OSError: pass"
    rules = enter.Rules(level=2, rw=(shown,), fresh=(scratch,))  # no uid: as where we are not root
    done = subprocess.run(
        enter.command(rules, [sys.executable, "-c", code, *map(str, (*mine, *ways))]),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == [str(path) for path in mine]


@needs_level_2
def test_all_that_it_keeps_in_memory_files_has_a_limit() -> None:
    fill = "import os; [os.write(os.open(f'{d}/{i}', 65), b'x' * 300_000) "
    fill += "for i in range(3) for d in ('/tmp', '/dev/shm')]"
    for room, ends in ((1_000_000, "No space left"), (4_000_000, "")):
        rules = enter.Rules(level=2, room_bytes=room)
        done = run_walled(rules, [sys.executable, "-c", fill])
        assert ends in done.stderr
        assert bool(done.returncode) == bool(ends)


@needs_level_2
def test_processes_have_a_limit_that_holds_for_root(tmp_path: Path) -> None:
    fork = "import os, time\nfor i in range(40):\n  if os.fork() == 0: time.sleep(9); os._exit(0)"
    done = run_walled(enter.Rules(level=2, processes=20), [sys.executable, "-c", fork])
    assert "Resource temporarily unavailable" in done.stderr


def test_rules_survive_the_way_to_the_launcher(tmp_path: Path) -> None:
    for rules in (
        enter.Rules(),
        enter.Rules(level=2, rw=(tmp_path,), devices=(), uid=7, chdir=tmp_path),
    ):
        assert enter.from_plain(json.loads(json.dumps(enter.to_plain(rules)))) == rules


def test_a_level_that_cannot_be_had_is_refused_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    with pytest.raises(UnavailableError, match="no Landlock"):
        enter.require(1)
    monkeypatch.setattr(landlock, "abi", lambda: 4)
    monkeypatch.setattr(enter, "no_namespaces", lambda: "unshare: Operation not permitted")
    with pytest.raises(UnavailableError, match="unshare: Operation not permitted"):
        enter.require(2)
    monkeypatch.delenv(enter.CONTAINER_MARK, raising=False)
    with pytest.raises(UnavailableError, match=r"container(?s:.*)which means --sandbox 1"):
        enter.require(3)
    with pytest.raises(UsageError, match="no sandbox level 7"):
        enter.require(7)


def test_the_usual_level_is_the_strictest_there_is_and_says_why_not_2(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 4)
    monkeypatch.setattr(enter, "no_namespaces", lambda: "")
    assert enter.usual_level() == 2
    monkeypatch.setattr(enter, "no_namespaces", lambda: "switched off")
    assert (enter.usual_level(), enter.lacking(2)) == (1, "switched off")
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    assert (enter.usual_level(), "no Landlock" in enter.lacking(2)) == (0, True)


@needs_level_2
def test_two_entrants_do_not_meet_at_a_socket_in_a_cache(tmp_path: Path) -> None:
    """Landlock does not mediate sockets with a path; at level 2 another's cache is not there."""
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    theirs.mkdir()
    path = str(mine / "socket")
    meet = f"import socket; socket.socket(socket.AF_UNIX).connect({path!r}); print('met')"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        (mine / "socket").chmod(0o777)
        words = [sys.executable, "-c", meet]
        assert "met" in run_walled(enter.Rules(level=2, rw=(mine,)), words).stdout
        assert "FileNotFound" in run_walled(enter.Rules(level=2, rw=(theirs,)), words).stderr


HIDDEN = """
import os, subprocess, sys
from harness.process import process_tree
subprocess.run(["mount", "-t", "proc", "-o", "hidepid=" + sys.argv[1], "proc", "/proc"], check=True)
os.setgroups([])
os.setresgid(*[int(sys.argv[2])] * 3)
os.setresuid(*[int(sys.argv[2])] * 3)
print(process_tree.hides_processes(), process_tree.children(os.getpid()))
"""


@needs_level_2
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount another /proc")
@pytest.mark.parametrize(
    ("hidepid", "user", "hides"),
    [(0, 65534, False), (1, 65534, True), (2, 65534, True), (2, 0, False)],
)
def test_whether_proc_hides_processes_is_tried(hidepid: int, user: int, hides: bool) -> None:
    """There nobody can stop or count who is below one that cannot be looked into."""
    words = ["unshare", "-pmf", "--kill-child", sys.executable, "-c", HIDDEN]
    command = [*words, str(hidepid), str(user)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60
    )
    assert done.stdout == f"{hides} []\n", done.stderr


def test_where_proc_hides_processes_there_is_no_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 4)
    monkeypatch.setattr(enter, "no_namespaces", lambda: "")
    monkeypatch.setattr(process_tree, "hides_processes", lambda: True)
    monkeypatch.setenv(enter.CONTAINER_MARK, "1")
    for level in (1, 2, 3):
        with pytest.raises(UnavailableError, match=r"hidepid(?s:.*)which means --sandbox 0"):
            enter.require(level)
    enter.require(0)
    (line,) = (line for line in doctor.walls() if line.what == "usual sandbox level")
    assert line.found == "0 (none)"
    assert "mount -o remount,hidepid=0 /proc" in line.next


ON_OLDER_KERNELS = """
import contextlib, ctypes, json, os, pty, signal, socket, sys
from pathlib import Path
from harness.process.sandbox import enter, landlock, readable
top, real, house = Path(sys.argv[1]), landlock.abi(), os.getpid()
own, far, shown = top / "own", top / "far", top / "shown"
libc = ctypes.CDLL(None, use_errno=True)
_, terminal = pty.openpty()
listens = socket.socket(socket.AF_UNIX)
listens.bind("")  # any abstract name
listens.listen()
readable.readable_paths()
def call(value):
    if value < 0:
        raise OSError(ctypes.get_errno(), "refused")
def runs(path):
    if not (child := os.fork()):
        with contextlib.suppress(OSError):
            os.execv(path, ["program"])
        os._exit(1)
    call(-os.waitpid(child, 0)[1])
def sends(fd):
    signal.pidfd_send_signal(fd, 0)
def doors(folder):
    file, mine, new = folder / "file", own / "file", folder / "new"
    for access in range(4):
        for more in (0, os.O_TRUNC, os.O_TRUNC | os.O_CREAT):
            yield f"open {access:o} {more:o}", lambda flags=access | more: os.open(file, flags)
    yield "truncate", lambda: os.truncate(file, 5)
    yield "make", lambda: os.open(new, os.O_CREAT)
    yield "nameless", lambda: os.open(folder, os.O_TMPFILE | os.O_RDWR)
    yield "mkdir", lambda: os.mkdir(new)
    yield "fifo", lambda: os.mkfifo(new)
    yield "bind", lambda: socket.socket(socket.AF_UNIX).bind(str(new))
    yield "symlink", lambda: os.symlink("file", new)
    yield "link out", lambda: os.link(mine, new)
    yield "link in", lambda: os.link(file, own / "new")
    yield "rename", lambda: os.rename(file, new)
    yield "rename out", lambda: os.rename(mine, new)
    yield "rename in", lambda: os.rename(file, own / "new")
    yield "exchange", lambda: call(libc.renameat2(-100, bytes(file), -100, bytes(mine), 2))
    yield "unlink", lambda: os.unlink(file)
    yield "list", lambda: os.listdir(folder)
    yield "run", lambda: runs(folder / "program")
def others():
    for path in (os.ttyname(terminal), "/dev/ptmx", f"/proc/{house}/environ"):
        for access in range(4):
            yield f"{path} {access}", lambda p=path, a=access: os.open(p, a | os.O_NOCTTY)
    yield "kill", lambda: os.kill(house, 0)
    yield "kill a group", lambda: os.killpg(os.getpgid(house), 0)
    yield "tkill", lambda: call(libc.syscall(200 if os.uname().machine == "x86_64" else 130, house, 0))
    yield "tgkill", lambda: call(libc.tgkill(house, house, 0))
    yield "pidfd_send_signal", lambda: sends(os.pidfd_open(house))
    yield "connect", lambda: socket.socket(socket.AF_UNIX).connect(listens.getsockname())
def opened(tries):
    for name, door in tries:
        with contextlib.suppress(OSError):
            door()
            yield name
for abi in range(1, real + 1):
    if not os.fork():
        os.setsid()
        landlock.abi = lambda: abi
        enter.enter(enter.Rules(level=1, rw=(own,), ro=(shown,)))
        found = {"far": list(opened(doors(far))), "shown": list(opened(doors(shown)))}
        print(json.dumps([abi, {**found, "others": list(opened(others()))}]), flush=True)
        os._exit(0)
    os.wait()
"""


@needs_level_1
def test_no_older_kernel_leaves_a_door_open(tmp_path: Path) -> None:
    """Simulated: today's Landlock is asked for no more than an older one knows."""
    for folder in ("own", "far", "shown"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text("a rival's row")
        (tmp_path / folder / "program").write_text("#!/bin/sh\n")
        (tmp_path / folder / "program").chmod(0o755)
    words = [sys.executable, "-c", ON_OLDER_KERNELS, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)
    found = dict(map(json.loads, done.stdout.splitlines()))
    shut = {"far": [], "shown": ["open 0 0", "list", "run"], "others": []}
    assert found == dict.fromkeys(range(1, landlock.abi() + 1), shut), done.stderr


@pytest.mark.parametrize(("abi", "flags"), [(6, 0), (7, 5)])
def test_no_refusal_of_an_entrant_s_is_logged(
    abi: int, flags: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100,000 a second went to the log of a host that audits."""
    calls: list[tuple[int, ...]] = []

    def syscall(*asked: int) -> int:
        calls.append(asked)
        return os.open("/dev/null", os.O_RDONLY) if asked[0] == landlock.CREATE else 0

    monkeypatch.setattr(landlock, "libc", SimpleNamespace(syscall=syscall))
    monkeypatch.setattr(landlock, "abi", lambda: abi)
    landlock.restrict([])
    assert [asked[2] for asked in calls if asked[0] == landlock.RESTRICT] == [flags]


OPENS_PROC = """
import contextlib, os, pathlib, subprocess
files = [file for top in ("/proc", "/proc/sys") for file in pathlib.Path(top).iterdir()]
for path in (*files, pathlib.Path("/proc/1/cmdline")):
    with contextlib.suppress(OSError):
        if not path.name.isdigit() and not path.is_symlink():
            if path.is_file():
                path.open("rb").close()
            if path.is_file() or os.listdir(path):
                print(path)
subprocess.run(["grep", "-q", "stack", "/proc/self/maps"], check=True)
"""


@needs_level_2
def test_level_2_opens_no_more_of_proc_than_level_1() -> None:
    """The kernel's command line can hold a password; that of the first process holds the rules."""
    done = run_walled(enter.Rules(level=2), [sys.executable, "-c", OPENS_PROC])
    assert done.returncode == 0, done.stderr
    found = set(done.stdout.split())
    assert found <= {*map(str, enter.FACTS), "/proc/sys"}
    assert found >= {"/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/vm"}


@each_level
def test_nothing_is_gained_at_exec(tmp_path: Path, level: int) -> None:
    """Bits were left behind the first that a container lacks, and all at level 2 as root."""
    words = ["grep", "CapBnd", "/proc/self/status"]
    if level == 1 and os.geteuid() != 0:
        pytest.skip("who is not root cannot")
    done = run_walled(enter.Rules(level=level), words)
    assert done.stdout.split() == ["CapBnd:", "0" * 16], done.stderr


@needs_level_1
def test_what_is_an_order_or_a_key_is_not_read(tmp_path: Path) -> None:
    """As root at level 1, to read /sys/class/zram-control/hot_add made a disk; it is only opened here."""
    asked = [p for p in Path("/sys/class").glob("*/*") if p.is_file() and not p.is_symlink()]
    asked += [p for p in Path("/proc/sys/net").glob("*/*") if p.is_file()]
    links = list(Path("/sys/class/mem").glob("*/dev"))
    opens = f"""
import os
for path in {[str(path) for path in (*asked, *links, "/proc/sys/kernel/ostype")]}:
    try:
        os.close(os.open(path, os.O_RDONLY))
        print(path)
    except OSError:
        pass
print(*(f"/sys/class/{{name}}" for name in os.listdir("/sys/class")))
"""
    done = run_walled(enter.Rules(level=1, rw=(tmp_path,)), [sys.executable, "-c", opens])
    *found, listed = done.stdout.splitlines()
    assert found == [*map(str, links), "/proc/sys/kernel/ostype"], done.stderr
    assert set(listed.split()) == set(map(str, Path("/sys/class").iterdir()))
