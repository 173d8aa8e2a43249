"""`build`, `profile` and `explain`."""

from __future__ import annotations

import argparse
import errno
import json
import math
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.catalog.entrants import load_entrant, private_folder
from harness.cli import main
from harness.cli.commands import build, profile
from harness.cli.results import explain
from harness.errors import UnavailableError, WireError
from harness.process import wire
from harness.process.sandbox import enter
from harness.process.sandbox.folders import remove_tree
from harness.schema import Case, Entrant, Kind, Limits, Machine
from harness.worker.cuda import promises
from harness.worker.cuda.nvrtc import CudaSourceError
from tests.board.factory import result

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
levels = pytest.mark.parametrize("level", [n for n in (1, 2) if not enter.lacking(n)])
FORWARD = "def custom_attention_forward(q, k, v, causal=True, sm_scale=None):\n    return q\n"
KERNEL = {
    "name": "f",
    "arch": "sm_90a",
    "registers": 8,
    "stack_bytes": 0,
    "spill_store_bytes": 0,
    "spill_load_bytes": 0,
    "smem_static_bytes": 0,
}


def entrant(folder: Path, source: str) -> Entrant:
    """An extension with one .cu."""
    folder.mkdir(parents=True)
    (folder / "submission.py").write_text(FORWARD)
    (folder / "manifest.yaml").write_text(
        f"name: {folder.name}\nauthor: a\ndescription: d\nlanguage: cuda\nlicense: Apache-2.0\n"
    )
    (folder / "kernel.cu").write_text(source)
    return load_entrant(folder, Kind.SUBMISSION, None)


@needs_nvcc
@levels
def test_a_kernel_is_reported_from_behind_the_walls(tmp_path: Path, level: int) -> None:
    source = (
        "// build: -DN=3 -Iinc\n#include <n.h>\n__global__ void f(float* q) { q[0] = N + M; }\n"
    )
    entrant(tmp_path / "x", source)
    (tmp_path / "x" / "inc").mkdir()
    (tmp_path / "x" / "inc" / "n.h").write_text("#define M 4\n")
    there = load_entrant(tmp_path / "x", Kind.SUBMISSION, None)
    (found,) = build.report(there, None, ["sm_90a"], Limits(), level)
    assert (found.name.split()[0], found.arch) == ("f", "sm_90a")
    assert found.registers > 0


@needs_nvcc
@levels
def test_a_private_file_cannot_be_included(tmp_path: Path, level: int) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden_word_of_the_house\n")
    there = entrant(tmp_path / "x", f'#include "{secret}"\n__global__ void f() {{}}\n')
    with pytest.raises(CudaSourceError) as caught:
        build.report(there, None, ["sm_90a"], Limits(), level)
    assert "hidden_word_of_the_house" not in caught.value.message
    with pytest.raises(CudaSourceError, match="hidden_word_of_the_house"):  # without walls it can
        build.report(there, None, ["sm_90a"], Limits(), 0)


@needs_nvcc
@levels
def test_a_compiler_of_its_own_is_refused_and_would_be_behind_the_walls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: int
) -> None:
    there = entrant(tmp_path / "x", "// build: -ccbin ./cc\n__global__ void f() {}\n")
    with pytest.raises(CudaSourceError, match=r"kernel\.cu:1: '-ccbin' is not among"):
        build.report(there, None, ["sm_90a"], Limits(), level)
    # Even if the list let it through: the program runs, and finds nothing to write to or to read.
    house = tmp_path / "harness"
    shutil.copytree(Path(promises.__file__).parents[2], house)
    flags = (house / "catalog" / "compiler_flags.py").read_text()
    (house / "catalog" / "compiler_flags.py").write_text(
        flags.replace("ALLOWED = {", 'ALLOWED = {"all": ".*",')
    )
    monkeypatch.setattr("harness.process.scratch.HOME", tmp_path)
    monkeypatch.setattr("harness.process.child.HOME", tmp_path)
    secret, ran = tmp_path / "secret", tmp_path / "ran"
    secret.write_text("hidden_word_of_the_house")
    cc = house / "cc"  # of its own files none can be run
    cc.write_text(f"#!/bin/sh\ncat {secret} >&2\necho it ran >&2\ntouch {ran}\nexit 1\n")
    cc.chmod(0o755)
    there = entrant(tmp_path / "again" / "x", f"// build: -ccbin {cc}\n__global__ void f() {{}}\n")
    with pytest.raises(CudaSourceError, match="it ran") as caught:
        build.report(there, None, ["sm_90a"], Limits(), level)
    assert "hidden_word_of_the_house" not in caught.value.message
    assert not ran.exists()


@needs_nvcc
@levels
def test_only_what_was_hashed_is_compiled(tmp_path: Path, level: int) -> None:
    folder = tmp_path / "x"
    there = entrant(folder, "__global__ void f(float* q) { q[0] = 1; }\n")
    for unseen in ("build", "results"):
        (folder / unseen).mkdir()
        (folder / unseen / "more.cu").write_text("#error nobody hashed it\n")
    (folder / "kernel.cu").write_text("#error it was changed meanwhile\n")
    (found,) = build.report(there, None, ["sm_90a"], Limits(), level)
    assert found.name == "f"


@needs_nvcc
@levels
def test_a_place_of_an_error_is_told_as_the_author_knows_it(tmp_path: Path, level: int) -> None:
    entrant(tmp_path / "x", '#include "inc/n.h"\n__global__ void f() {}\n')
    (tmp_path / "x" / "inc").mkdir()
    (tmp_path / "x" / "inc" / "n.h").write_text("\n#error stop here\n")
    there = load_entrant(tmp_path / "x", Kind.SUBMISSION, None)
    with pytest.raises(CudaSourceError, match="stop here") as caught:
        build.report(there, None, ["sm_90a"], Limits(), level)
    assert "attnboard-build-" not in caught.value.message
    assert "inc/n.h" in caught.value.message


@needs_nvcc
@pytest.mark.parametrize(
    ("source", "line", "said"),
    [
        ('\n#include "gone.h"\n', 2, "kernel.cu:2:10: fatal error: gone.h"),
        ("\n\nint x = y;\n", 3, "kernel.cu(3): error: identifier"),
        ('__global__ void f() { asm("bogus.op;"); }\n', 0, "ptxas kernel.ptx, line"),
    ],
)
def test_what_nvcc_says_of_its_copy_is_told_of_the_file(
    tmp_path: Path, source: str, line: int, said: str
) -> None:
    there = entrant(tmp_path / "x", source)
    with pytest.raises(CudaSourceError) as caught:
        build.report(there, None, ["sm_90a"], Limits(), enter.usual_level())
    error = caught.value
    assert (error.file, error.line) == ("kernel.cu", line)
    assert error.message.startswith(said)
    assert tempfile.gettempdir() not in error.message


@needs_nvcc
@pytest.mark.parametrize(
    ("needs", "source", "code"),
    [
        ("12.0", "__global__ void f() {}\n", 3),
        ("9.0", "", 3),
        ("9.0", "__global__ void f() {}\n", 0),
    ],
)
def test_where_nothing_was_compiled_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], needs: str, source: str, code: int
) -> None:
    entrant(tmp_path / "x", source)
    with (tmp_path / "x" / "manifest.yaml").open("a") as manifest:
        manifest.write(f"needs: {{compute_capability: '{needs}'}}\n")
    assert build.run(main.parse_args(["build", str(tmp_path / "x"), "--fail-on-spills"])) == code
    assert ("x: nothing was compiled: no .cu file of it" in capsys.readouterr().err) == bool(code)
    shutil.copytree(tmp_path / "x", tmp_path / "y")
    (tmp_path / "y" / "kernel.cu").write_text("int x = y;\n")
    (tmp_path / "y" / "manifest.yaml").write_text("name: y\nlanguage: cuda\n")
    assert build.run(main.parse_args(["build", str(tmp_path / "x"), str(tmp_path / "y")])) == 1


@needs_nvcc
def test_of_a_folder_who_cannot_be_read_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entrant(tmp_path / "x", "__global__ void f() {}\n")
    shutil.copytree(tmp_path / "x", tmp_path / "a")
    (tmp_path / "a" / "manifest.yaml").write_text("name: a\nlanguage: 'latin ##[error]'\n")
    assert build.run(main.parse_args(["build", str(tmp_path)])) == 1
    said = capsys.readouterr()
    assert "sm_90a" in said.out
    assert said.err.count("left out: ") == 1
    assert "latin" in said.err
    assert "##[" not in said.err


@needs_nvcc
@levels
def test_a_compiler_that_takes_too_much_memory_is_ended(tmp_path: Path, level: int) -> None:
    there = entrant(tmp_path / "x", '#include "/dev/zero"\n__global__ void f() {}\n')
    with pytest.raises(CudaSourceError, match=r"host memory .* GiB, allowed 0\.3") as caught:
        build.report(there, None, ["sm_90a"], Limits(memory_gib=0.3), level)
    assert caught.value.status == "OUT_OF_MEMORY"


def test_a_compiler_s_memory_is_half_of_the_machine_s_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for machine_gib, most_gib in ((16, 8), (1024, Limits().memory_gib)):
        facts = {"SC_PHYS_PAGES": machine_gib << 18, "SC_PAGE_SIZE": 4096}
        monkeypatch.setattr(build.os, "sysconf", facts.get)
        assert build.limits().memory_gib == most_gib


def told(*messages: dict[str, Any], within_s: float = 60) -> Any:
    """What becomes of a builder's `messages`."""
    deadline = time.monotonic() + within_s
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for message in messages:
            wire.send(theirs, message)
        return build._kernels_from(SimpleNamespace(line=ours), deadline)  # type: ignore[arg-type]


def test_what_it_tells_is_typed() -> None:
    (found,) = told({"op": "kernel", "kernel": {**KERNEL, "name": "f\x1b[31m"}}, {"op": "done"})
    assert found.name == "f"
    names = {"name": "f\nchampion", "notes": ["a\nb"]}
    (found,) = told({"op": "kernel", "kernel": {**KERNEL, **names}}, {"op": "done"})
    assert (found.name, found.notes) == (r"'f\nchampion'", (r"'a\nb'",))
    huge = [{key: number} for key, told in KERNEL.items() if told == 0 for number in (10**12, -1)]
    more = [{"smem_dynamic_bytes": 1 << 40}, {"threads": -1}, {"promises": {"registers": 1 << 40}}]
    for wrong in (
        *({"registers": "many"}, {"name": None}, {"notes": [[]]}, {"occupancy_pct": math.inf}),
        *({"registers": 10**4299}, *huge, *more),
    ):
        with pytest.raises(WireError):
            told({"op": "kernel", "kernel": {**KERNEL, **wrong}}, {"op": "done"})
    for nothing in ({}, {"op": "kernel"}, {"op": "kernel", "kernel": []}):
        with pytest.raises(WireError):
            told(nothing)
    with pytest.raises(wire.PeerSilent):
        told(within_s=0.05)
    with pytest.raises(wire.PeerSilent):  # it could go on
        told({"op": "kernel", "kernel": KERNEL}, {"op": "done"}, within_s=-1)
    with pytest.raises(CudaSourceError, match="no compiler"):
        told({"op": "failed", "status": "UNAVAILABLE", "message": "no compiler"})
    for line in ("3", -1, 10**4299):
        failed = {"op": "failed", "status": "COMPILE_ERROR", "message": "bad", "file": "k"}
        with pytest.raises(CudaSourceError) as caught:
            told({**failed, "line": line})
        assert (caught.value.file, caught.value.line) == ("k", 0)


def test_the_compilers_words_fake_no_line_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise CudaSourceError("COMPILE_ERROR", "x\nmine: built\n  next: sh", "kernel.cu", 3)

    monkeypatch.setattr(build, "report", fails)
    assert build.one(entrant(tmp_path / "x", ""), None, False)[0] == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "x: COMPILE_ERROR: kernel.cu:3: x"
    assert lines[1:] == ["  | mine: built", "  |   next: sh", "  next: mend that line"]


@pytest.mark.parametrize("status", ["UNAVAILABLE", "COMPILE_ERROR", "NO_FOLDERS"])
def test_whatever_ends_one_the_others_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: str
) -> None:
    """UNAVAILABLE was the machine's, and ended the command: a source could bring it about."""

    def report(asked: Entrant, *_: object) -> list[Any]:
        if asked.folder.name == "ends":
            raise CudaSourceError(status, "it does not tell")
        return [build.KernelReport(**KERNEL)]

    monkeypatch.setattr(build, "report", report)
    names = [str(entrant(tmp_path / name, "").folder) for name in ("ends", "good")]
    words = {"arch": ["sm_90a"], "fail_on_spills": False, "json": True}
    ended = build.run(argparse.Namespace(names=names, **words))
    assert ended == (1 if status == "COMPILE_ERROR" else 3)
    printed = capsys.readouterr()
    ends, good = json.loads(printed.out)["builds"]
    assert (ends["error"], good["error"]) == (f"{status}: it does not tell", "")
    assert f"ends: {status}: it does not tell" in printed.err


def test_whoever_is_compiled_the_folders_of_all_stay_shut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note said that workers cannot read it, and the next line quoted its NOTES.md."""
    shut: list[object] = []

    def report(*asked: object) -> None:
        shut.append(asked[-1])
        raise CudaSourceError("COMPILE_ERROR", "none")

    monkeypatch.setattr(build, "report", report)
    mine, rival = entrant(tmp_path / "x", "").folder, tmp_path / "lib" / "rival.py"
    rival.parent.mkdir()
    rival.write_text(FORWARD)
    monkeypatch.setattr(sys, "path", [*sys.path, str(rival.parent)])
    words = {"arch": ["sm_90a"], "fail_on_spills": False, "json": False}
    assert build.run(argparse.Namespace(names=[str(mine), str(rival)], **words)) == 1
    assert shut == [(rival, (Path.home() / ".cache" / "attnboard").resolve())]


def test_it_cannot_tell_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every part of it had a bound, their sum had none: six entries were 2.8 GiB of ours."""
    monkeypatch.setattr(build, "MOST_TOLD", 20_000, raising=False)
    small = {"op": "kernel", "kernel": KERNEL}
    noted = {"op": "kernel", "kernel": {**KERNEL, "notes": ["x" * 90] * 90}}
    quoted = {"op": "kernel", "kernel": {**KERNEL, "notes": ["a" + "\n" * 40 + "b"] * 90}}
    assert len(told(*[small] * 9, {"op": "done"})) == 9
    assert len(told(noted, noted, {"op": "done"})) == 2
    for many in ([small] * 10, [noted] * 3, [small] * 3 + [noted] * 2, [quoted] * 2):
        with pytest.raises(CudaSourceError, match="over 9 kernels or too long notes"):
            told(*many, {"op": "done"})
    with pytest.raises(WireError, match="at most 100 items"):
        told({"op": "kernel", "kernel": {**KERNEL, "notes": [""] * 101}})


def test_who_is_profiled_is_given_the_hashed_files_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the user is told that nothing else holds it."""
    given: list[Any] = []

    def ncu(command: list[str], _: str, env: dict[str, str], cwd: Path) -> str:
        given.extend(([path.name for path in Path(command[4]).iterdir()], env, cwd))
        raise profile.counters.ProfileUnavailableError("enough")

    monkeypatch.setattr(profile.counters, "run_ncu", ncu)
    monkeypatch.setenv("MY_SECRET", "hunter2")
    folder = tmp_path / "x"
    (folder / "build").mkdir(parents=True)
    (folder / "build" / "unhashed.py").touch()
    (folder / "submission.py").write_text(FORWARD)
    alone = load_entrant(folder, Kind.SUBMISSION, None)
    args = SimpleNamespace(kernel=".*", out=tmp_path / "roofline")
    with pytest.raises(UnavailableError):
        profile.profile(alone, build.SUITE, Machine(sms=132), args, [alone])  # type: ignore[arg-type]
    files, env, cwd = given
    assert files == ["submission.py"]
    assert "MY_SECRET" not in env
    assert env["HOME"] == env["TMPDIR"] == str(cwd)
    assert "x runs outside all walls, as you" in capsys.readouterr().err


def test_who_is_profiled_beside_others_reads_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = []
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "submission.py").write_text(FORWARD)
        named.append(load_entrant(tmp_path / name, Kind.SUBMISSION, None))
    manifest = named[0].manifest.model_copy(update={"language": "cuda"})
    one = named[0].model_copy(update={"manifest": manifest})
    given: list[tuple[Path, ...]] = []
    monkeypatch.setattr(build, "note_walls", lambda all_: tuple(e.folder for e in all_))
    monkeypatch.setattr(build, "one", lambda *asked: given.append(asked[3]) or (0, {"text": ""}))
    profile.profile(one, build.SUITE, Machine(), SimpleNamespace(out=tmp_path), named)  # type: ignore[arg-type]
    assert given == [(tmp_path / "a", tmp_path / "b")]


def test_the_cache_is_shut_to_compilers_too(tmp_path: Path) -> None:
    """Where a link leads it below an import path, the compiler quoted a rival's copy in it."""
    (tmp_path / "submission.py").write_text(FORWARD)
    entrant = load_entrant(tmp_path, Kind.SUBMISSION, None)
    shut = build.note_walls([entrant])
    assert (Path.home() / ".cache" / "attnboard").resolve() in shut


def test_the_profiled_program_is_python() -> None:
    case = Case(name="c", batch=1, heads=4, kv_heads=2, seqlen=64, headdim=64)
    command = profile.command_for(Path("submissions/x"), "{}", case)
    compile(command[2], "profiled", "exec")
    assert command[4:6] == ["submissions/x", "{}"]
    assert Case.model_validate_json(command[6]) == case


TOOL = """#!/bin/sh
echo "Function k$(wc -c < "$2"):"
echo " REG:5 STACK:1 SHARED:2 LOCAL:3"
cat '{secret}'
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of `mine`; a tool that also tells a file from outside of its folder."""
    (tmp_path / "secret").write_text("Function secret:\n REG:1 STACK:1 SHARED:1 LOCAL:1\n")
    tool = tmp_path / "tools" / "cuobjdump"
    tool.parent.mkdir()
    tool.write_text(TOOL.format(secret=tmp_path / "secret"))
    tool.chmod(0o755)
    monkeypatch.setattr(explain, "_cuobjdump", lambda: str(tool))
    who = (row := result("mine")).entry, row.source_sha256, row.machine.slug
    found = tmp_path / "entrants" / private_folder(*who)[0] / "cache"
    found.mkdir(parents=True)
    return found


def told_explain(cache: Path) -> list[explain.Resources]:
    return list(explain.resources(cache.parents[1], result("mine")))


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.symlink_to("/nowhere"),
        lambda path: path.symlink_to(path.name),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.mkdir(),
        os.mkfifo,
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_text('{"num_warps": -1, "shared": 1e99}'),
        lambda path: path.write_text('{"num_warps": %s}' % ("9" * 4299)),
        lambda path: path.write_text('{"num_warps": 33, "shared": true}'),
    ],
)
def test_a_hostile_note_or_binary_is_as_good_as_none(
    cache: Path, make: Callable[[Path], object]
) -> None:
    (cache / "a.cubin").write_bytes(b"abc")
    make(cache / "a.json")
    make(cache / "b.cubin")
    found = {one.kernel: one for one in told_explain(cache)}
    assert found["k3"] == explain.Resources("k3", 5, 2, 4, 0)


def test_folders_in_one_another_have_no_end(cache: Path) -> None:
    (cache / "a.cubin").write_bytes(b"abc")
    here = os.open(cache, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    assert told_explain(cache) == [explain.Resources("k3", 5, 2, 4, 0)]
    remove_tree(cache)  # pytest's own way does not come back from there


def test_a_number_without_end_is_no_line_of_the_tool(cache: Path) -> None:
    tool = cache.parents[2] / "tools" / "cuobjdump"
    tool.write_text(f"""#!/bin/sh
echo "Function a:"
echo " REG:{"9" * 5000} STACK:1 SHARED:1 LOCAL:1"
echo "Function b:"
echo " REG:1 STACK:1 SHARED:1 LOCAL:{"9" * 5000}"
{TOOL.partition("cat")[0].partition(chr(10))[2]}""")
    (cache / "a.cubin").write_bytes(b"abc")
    assert told_explain(cache) == [explain.Resources("k3", 5, 2, 4, 0)]


def test_of_what_the_tool_says_of_a_binary_no_more_than_some_is_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = cache.parents[2] / "tools" / "cuobjdump"
    endless = """\
#!/bin/sh
if [ "$(wc -c < "$2")" = 4 ]; then head -c 20000000 /dev/zero | tr '\\0' x | tee /dev/stderr; fi
"""
    tool.write_text(endless + TOOL.partition("\n")[2].replace("{secret}", "/nowhere"))
    (cache / "a.cubin").write_bytes(b"long")
    (cache / "b.cubin").write_bytes(b"abc")
    kept = []
    monkeypatch.setattr(
        explain, "_usage", lambda *a, usage=explain._usage: kept.extend(usage(*a)) or kept
    )
    assert told_explain(cache) == [explain.Resources("k3", 5, 2, 4, 0)]
    assert sum(map(len, kept)) < 1 << 20


def test_of_binaries_no_more_is_copied_than_some_the_newest_first(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 holes of 16 MiB, which took no room in the cache, filled the reader's disk."""
    monkeypatch.setattr(explain, "MOST_COPIED_BYTES", 10)
    for size in (3, 4, 5):
        path = cache / f"{size}.cubin"
        path.touch()
        os.truncate(path, size)
        os.utime(path, (size, size))
    assert [one.kernel for one in told_explain(cache)] == ["k4", "k5"]


def test_a_disk_that_is_full_ends_no_explain(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / "a.cubin").write_bytes(b"abc")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert told_explain(cache) == []


def test_a_tool_that_hangs_is_ended_with_what_it_started(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = f"300.{os.getpid()}"
    tool = cache.parents[2] / "tools" / "cuobjdump"
    hangs = f"""#!/bin/sh
[ "$(wc -c < "$2")" = 4 ] && sleep {seconds}
"""
    tool.write_text(hangs + TOOL.partition("\n")[2].replace("{secret}", "/nowhere"))
    (cache / "b.cubin").write_bytes(b"long")
    os.utime(cache / "b.cubin", (1 << 31, 1 << 31))  # the newest is looked at last
    (cache / "a.cubin").write_bytes(b"abc")
    monkeypatch.setattr(explain, "MOST_S", 3)
    assert told_explain(cache) == [explain.Resources("k3", 5, 2, 4, 0)]
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert not [words for words in commands if seconds.encode() in words]


def test_the_tool_reads_a_copy_behind_walls(cache: Path) -> None:
    (cache / "a.cubin").write_bytes(b"abc")
    (cache / "a.json").write_text('{"num_warps": 4, "shared": 7}')
    if explain.enter.usual_level() == 0:
        pytest.skip("no sandbox here")
    assert told_explain(cache) == [explain.Resources("k3", 5, 7, 4, 128)]
