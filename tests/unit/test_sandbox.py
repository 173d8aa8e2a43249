"""Level 1 holds: each probe is tried outside, where it works, and inside, where it must not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import sandbox, seccomp
from harness.errors import UnavailableError, UsageError

ROOT = Path(__file__).resolve().parents[2]


def available(level: int) -> bool:
    try:
        sandbox.require(level)
    except UnavailableError:
        return False
    return True


needs_level_1 = pytest.mark.skipif(not available(1), reason="no Landlock in this kernel")

PROBES = """
import ctypes, json, os, signal, socket, subprocess, sys
parent, scratch, secret = int(sys.argv[1]), sys.argv[2], sys.argv[3]
libc = ctypes.CDLL(None, use_errno=True)
def call(value):
    if value < 0:
        raise OSError(ctypes.get_errno(), "refused")
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
    "udp": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close(),
    "shared_memory": lambda: open("/dev/shm/attnboard-probe", "w").close(),
    "tmp": lambda: open("/tmp/attnboard-probe", "w").close(),
    "scratch": lambda: open(scratch + "/file", "w").close(),
    "own_name": lambda: open("/proc/self/comm", "w").write("probe"),
    "own_child": lambda: subprocess.run([sys.executable, "-c", ""], check=True),
    "end_child": lambda: subprocess.Popen(["sleep", "9"]).kill(),
    "unix_socket": lambda: socket.socket(socket.AF_UNIX).close(),
    "libraries": lambda: __import__("decimal"),
    "null": lambda: open("/dev/null", "w").close(),
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
MUST_STAY_OPEN = {
    "scratch",
    "own_name",
    "own_affinity",
    "own_child",
    "end_child",
    "unix_socket",
    "libraries",
    "null",
}


def probe(tmp_path: Path, level: int) -> dict[str, str]:
    """What the probes say at `level`; they run in a child of this process."""
    scratch, secret, script = (
        tmp_path / "scratch",
        tmp_path / "secret" / "file",
        tmp_path / "probe.py",
    )
    scratch.mkdir(exist_ok=True)
    secret.parent.mkdir(exist_ok=True)
    secret.write_text("rival's source")
    script.write_text(PROBES)
    rules = sandbox.Rules(rw=(scratch,), ro=(script,), chdir=scratch)
    words = [sys.executable, str(script), str(os.getpid()), str(scratch), str(secret)]
    line = sandbox.command(level, rules, words)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)}
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("/dev/shm/attnboard-probe", "/tmp/attnboard-probe"):
        Path(name).unlink(missing_ok=True)
    told: dict[str, str] = json.loads(done.stdout)
    return told


@needs_level_1
def test_level_1_shuts_every_door_and_leaves_work_possible(tmp_path: Path) -> None:
    told = probe(tmp_path, 1)
    assert {name for name, state in told.items() if state == "open"} == MUST_STAY_OPEN


@pytest.mark.skipif(not available(2), reason="bubblewrap is not installed")
def test_level_2_shuts_the_same_doors(tmp_path: Path) -> None:
    told = probe(tmp_path, 2)
    assert {name for name, state in told.items() if state == "open"} == MUST_STAY_OPEN


def test_the_probes_can_succeed(tmp_path: Path) -> None:
    told = probe(tmp_path, 0)
    always = {
        "read_secret",
        "write_secret",
        "list_folder",
        "parent_cmdline",
        "signal",
        "affinity",
        "udp",
        "tmp",
    }
    assert {name for name, state in told.items() if state == "open"} >= always | MUST_STAY_OPEN


@needs_level_1
def test_a_planted_module_does_not_run_before_the_walls(tmp_path: Path) -> None:
    """$HOME and the start folder are the entrant's; the launcher must import nothing from there."""
    home = tmp_path / "home"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for folder in (home / ".local" / "lib" / version / "site-packages", home):
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("usercustomize", "argparse", "resource"):
            (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    line = sandbox.command(1, sandbox.Rules(rw=(home,), chdir=home), ["true"])
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(home)}
    subprocess.run(line, env=env, check=True, timeout=60, cwd=tmp_path)
    assert not (tmp_path / "ran").exists()


@needs_level_1
def test_use_grants_files_but_no_new_ones(tmp_path: Path) -> None:
    arena = tmp_path / "arena"
    arena.mkdir()
    (arena / "there").write_text("x")
    code = f"open({str(arena / 'there')!r}, 'r+').close(); open({str(arena / 'new')!r}, 'w')"
    line = sandbox.command(1, sandbox.Rules(use=(arena,)), [sys.executable, "-c", code])
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert "PermissionError" in done.stderr
    assert "new" in done.stderr
    assert not (arena / "new").exists()


@needs_level_1
def test_files_have_a_limit(tmp_path: Path) -> None:
    code = f"import os; f = os.open({str(tmp_path / 'big')!r}, 65); os.write(f, b'x' * 2000)"
    code += "; os.write(f, b'x')"
    rules = sandbox.Rules(rw=(tmp_path,), file_bytes=1000)
    line = sandbox.command(1, rules, [sys.executable, "-c", code])
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert (tmp_path / "big").stat().st_size <= 1000


def test_a_level_that_cannot_be_had_is_refused_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sandbox, "landlock_abi", lambda: 0)
    with pytest.raises(UnavailableError, match="no Landlock"):
        sandbox.require(1)
    monkeypatch.setattr(sandbox, "landlock_abi", lambda: 4)
    monkeypatch.setattr(sandbox.shutil, "which", lambda _: None)
    with pytest.raises(UnavailableError, match="bubblewrap is not installed"):
        sandbox.require(2)
    monkeypatch.delenv(sandbox.CONTAINER_MARK, raising=False)
    with pytest.raises(UnavailableError, match="container"):
        sandbox.require(3)
    with pytest.raises(UsageError, match="no sandbox level 7"):
        sandbox.require(7)


def test_the_usual_level_falls_to_0_without_landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "landlock_abi", lambda: 0)
    assert sandbox.usual_level() == 0


def run_filter(program: list[seccomp.Instruction], arch: int, number: int, *words: int) -> int:
    """Interpret a filter: what it returns for one system call."""
    data = {0: number, 4: arch} | {16 + 8 * i: word for i, word in enumerate(words)}
    at = accumulator = 0
    while True:
        code, yes, no, constant = program[at]
        at += 1
        if code == seccomp.RETURN:
            return constant
        if code == seccomp.LOAD:
            accumulator = data.get(constant, 0)
            continue
        holds = {
            seccomp.EQUAL: accumulator == constant,
            seccomp.GREATER_EQUAL: accumulator >= constant,
            seccomp.ANY_BIT: bool(accumulator & constant),
        }[code]
        at += yes if holds else no


@pytest.mark.parametrize("machine", sorted(seccomp.ARCHES))
def test_the_filter_call_by_call(machine: str) -> None:
    column, arch = seccomp.ARCHES[machine]
    program = seccomp.filter_program(machine, signals_to=None)

    def allowed(number: int, *words: int) -> bool:
        return run_filter(program, arch, number, *words) == seccomp.ALLOW

    for numbers in seccomp.FORBIDDEN_CALLS.values():
        assert not allowed(numbers[column])
    assert allowed(seccomp.SOCKET[column], seccomp.AF_UNIX)
    assert not allowed(seccomp.SOCKET[column], 2)
    assert not allowed(seccomp.SOCKET[column], 10)
    assert allowed(seccomp.CLONE[column], 0x3D0F00)  # a thread
    assert not allowed(seccomp.CLONE[column], 0x10000000)  # a user namespace
    assert not allowed(seccomp.CLONE3[column])
    assert allowed(seccomp.SETPRIORITY[column], 0, 0)
    assert not allowed(seccomp.SETPRIORITY[column], 0, 1)
    assert not allowed(seccomp.SETPRIORITY[column], seccomp.PRIO_USER, 0)  # all that the user owns
    for numbers in seccomp.OF_A_PROCESS.values():
        assert allowed(numbers[column], 0)
        assert allowed(numbers[column], os.getpid())
        assert not allowed(numbers[column], os.getppid())
    assert allowed(seccomp.FCNTL[column], 0, seccomp.SET_OWNER[0])  # Landlock's business
    assert allowed(seccomp.SIGNALS[0][column], 1)  # Landlock's business
    assert run_filter(program, arch ^ 1, 0) != seccomp.ALLOW
    assert run_filter(program, arch, 0x40000000) != seccomp.ALLOW
    reading = {"x86_64": 0, "aarch64": 63}[machine]
    assert allowed(reading)


def test_an_old_kernel_lets_a_process_signal_itself_only() -> None:
    column, arch = seccomp.ARCHES["x86_64"]
    program = seccomp.filter_program("x86_64", signals_to=77)
    kill = seccomp.SIGNALS[0][column]
    assert run_filter(program, arch, kill, 77) == seccomp.ALLOW
    assert run_filter(program, arch, kill, 78) != seccomp.ALLOW
    for call, owner in (
        (seccomp.FCNTL[column], seccomp.SET_OWNER),
        (seccomp.IOCTL[column], seccomp.SET_OWNER_IOCTL),
    ):
        assert run_filter(program, arch, call, 3, 1) == seccomp.ALLOW
        for command in owner:  # whose SIGIO may be any signal
            assert run_filter(program, arch, call, 3, command) != seccomp.ALLOW
