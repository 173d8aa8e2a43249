"""What a sandbox shows of the file system."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.campaign.unit import Unit, plan_units, to_text
from harness.catalog import request as catalog_request
from harness.catalog.entrants import find_entrants
from harness.catalog.request import Request
from harness.process import project
from harness.process.child import Jail, sandbox_rules, untrusted_env
from harness.process.project import HOME as ROOT
from harness.process.sandbox import enter, readable
from harness.process.sandbox.private_root import mirror
from harness.process.sandbox.readable import DenyList
from harness.schema import Case, Kind, Machine, Suite


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home" / "ada"
    for name in ("lib/fast", ".ssh", ".local/lib/python3/site-packages/x", "src/board/results"):
        (folder / name).mkdir(parents=True)
    (folder / ".ssh" / "id").write_text("secret")
    (folder / "link").symlink_to("lib")
    (folder / "lib" / "fast" / "__init__.py").write_text("SPEED = 7\n")
    return folder


def shut(home: Path) -> DenyList:
    return DenyList((home,), (home / "src" / "board",))


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("lib", ""),
        ("lib/fast", ""),
        (".local/lib/python3/site-packages", ""),
        ("", "it is "),
        ("..", "it holds "),
        ("src", "it holds "),
        ("src/board", "it is "),
        ("src/board/results", "it lies in "),
        (".ssh", "it lies in "),
        (".local/lib", "it lies in "),
        ("nowhere", "it is neither a folder"),
        ("lib/fast/__init__.py", "it is neither a folder"),
    ],
)
def test_folders_of_a_home(home: Path, entry: str, why: str) -> None:
    said = shut(home).refusal((home / entry).resolve())
    assert said.startswith(why)
    assert bool(said) == bool(why)


@pytest.mark.parametrize(
    "entry",
    [
        "/",
        "/etc",
        "/etc/ssl",
        "/proc",
        "/proc/self",
        "/dev/shm",
        "/home",
        "/var",
        "/var/lib",
        "/var/log",
        "/opt",
        "/srv",
        "/usr",
    ],
)
def test_folders_of_the_system(home: Path, entry: str) -> None:
    if Path(entry).is_dir():
        assert shut(home).refusal(Path(entry).resolve())


def test_no_other_project_is_opened_nor_what_holds_one(home: Path) -> None:
    """Of a second checkout on the import path workers could read results/ and the harness."""
    other = home / "lib" / "fast"
    inside, packages = other / "src", other / ".venv" / "lib" / "site-packages"
    for folder in (inside, packages):
        folder.mkdir(parents=True)
    assert readable.opened(shut(home), [str(home / "lib"), str(other), str(inside)])
    (other / project.MARK).touch()
    deny = shut(home)
    assert deny.refusal(other) == f"it is {other}"
    assert deny.refusal(home / "lib") == f"it holds {other}"
    assert deny.refusal(inside) == f"it lies in {other}"
    assert not deny.refusal(packages), "as those of a Python that was installed there"
    (home / "lib" / "loop").symlink_to("loop")
    assert deny.refusal(home / "lib") == f"it holds {other}", "whatever else is in there"


def test_what_cannot_be_listed_stays_shut(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mode 0711 on LD_LIBRARY_PATH: the project in it was not seen, and was read by its name."""
    scandir = os.scandir

    def refuses(path: Path) -> object:
        if path == home / "lib":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuses)
    assert "cannot be listed" in shut(home).refusal(home / "lib")
    assert "cannot be listed" in shut(home).holds(home / "lib"), "as a part of a compiler, too"
    assert not shut(home).refusal(home / "lib" / "fast")


def test_a_link_opens_no_more_than_what_it_points_to(home: Path) -> None:
    for name, target in (("all", "/"), ("mine", home), ("keys", home / ".ssh")):
        (home / "lib" / name).symlink_to(target)
        assert readable.opened(shut(home), [str(home / "lib" / name)]) == []
    (home / "lib" / "good").symlink_to(home / "lib" / "fast")  # workers need the name as well
    assert readable.opened(shut(home), [str(home / "lib" / "good")]) == [home / "lib" / "good"]


def test_what_leads_to_a_folder_that_is_not_utf_8_stays_shut(home: Path) -> None:
    """No wall mounts it, so that every worker died; no unit is told that it is the current one."""
    (home / os.fsdecode(b"x\xff")).mkdir()
    (home / "pkgs").symlink_to(os.fsdecode(b"x\xff"))
    assert not readable.opened(shut(home), [str(home / "pkgs")])
    assert readable.opened(shut(home), [str(home / "lib")])


def test_a_link_that_leads_nowhere_ends_no_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ln -s loop loop`; a name longer than any; a submission's mark that is such a link."""
    (home / "loop").symlink_to("loop")
    long, many = home / ("x" * 300), home / "lib" / "many" / "evil"
    many.mkdir(parents=True)
    (many / project.MARK).symlink_to("x" * 300)
    entries = [str(home / "loop"), str(long), str(many.parent), "/dev/null/x"]
    for key in readable.PATHS:
        monkeypatch.setenv(key, os.pathsep.join(entries))
    monkeypatch.setattr(sys, "path", [*sys.path, *entries])
    deny = replace(readable.shut(*map(Path, entries)), homes=(home,), own=())
    assert many.parent in readable.opened(deny)
    assert readable.refused(deny) == {}


@pytest.mark.skipif(os.getuid() != 0, reason="gives a folder to another user")
def test_what_another_person_has_beside_a_home_is_one(home: Path) -> None:
    """With LDAP or SSSD the list of users holds nobody."""
    bob, shared = home.parent / "bob", home.parent / "shared"
    for folder in (bob / ".ssh", bob / "lib", shared):
        folder.mkdir(parents=True)
    os.chown(bob, readable.FIRST_PERSON + 7, 0)
    said = {path: shut(home).refusal(path) for path in (bob, bob / ".ssh", bob / "lib", shared)}
    assert list(said.values()) == [f"it is {bob}", f"it lies in {bob / '.ssh'}", "", ""]


def test_only_what_the_user_asked_for_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(home), str(home / "lib"), "/no/where"]))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/")
    assert list(readable.refused(shut(home))) == [str(home), "/"]


def test_relative_entries_survive_another_working_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("PYTHONPATH", "lib")
    assert readable.import_path()[0] == str(home / "lib")


def test_a_user_without_an_entry_has_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """`docker run --user 54321`."""
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert readable.shut().homes
    env = {"PATH": os.defpath, "PYTHONPATH": str(ROOT)}
    code = "import pwd; pwd.getpwuid = {}.__getitem__; import harness.catalog.request"
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)


def test_the_homes_of_this_machine_are_shut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/nonexistent")  # whatever the environment says
    real = subprocess.run(
        [sys.executable, "-c", "import os, pwd; print(pwd.getpwuid(os.getuid()).pw_dir)"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    assert readable.shut().refusal(Path(real).resolve())
    assert readable.shut(ROOT).refusal(ROOT / "results")
    assert readable.shut(ROOT).refusal(ROOT.parent)


ATTACK = """
import os, sys
def can(path):
    try:
        os.listdir(path) if os.path.isdir(path) else open(path).close()
    except OSError:
        return "shut"
    return "open"
try:
    import fast
    speed = fast.SPEED
except ImportError:
    speed = None
print(speed, *map(can, sys.argv[1:]))
"""


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize(
    ("entries", "speed"),
    [("{home}/lib", 7), ("/", None), ("{home}", None), ("{home}/..", None), ("/:{home}:{home}/lib", 7),
     ("{home}/.ssh", None), ("{root}", None), ("{root}/results", None), ("{home}/link", 7)],
)  # fmt: skip
def test_no_import_path_opens_a_home_or_the_checkout(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    entries: str,
    speed: int | None,
    level: int,
) -> None:
    """A worker behind the walls, its rules made as for a run."""
    if why := enter.lacking(level):
        pytest.skip(why)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PYTHONPATH", entries.format(home=home, root=ROOT))
    folders = {
        name: tmp_path / "private" / name for name in ("cache", "scratch", "source", "house")
    }
    for folder in folders.values():
        folder.mkdir(parents=True)
    (folders["house"] / "harness").symlink_to(ROOT / "harness")
    jail = Jail(env={}, level=level, **folders)
    secrets = [home / ".ssh" / "id", ROOT / "results", ROOT / "run.py"]
    if (
        level == 1
    ):  # at level 2 these exist anew, with nothing in them but the way to what is listed
        secrets += [home, Path("/root"), Path("/")]
    line = enter.command(sandbox_rules(jail), [sys.executable, "-c", ATTACK, *map(str, secrets)])
    done = subprocess.run(
        line, env=untrusted_env(jail), cwd=folders["house"], capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.split() == [str(speed), *["shut"] * len(secrets)]


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    """An old root with links of every kind, and an empty new one."""
    old, new = tmp_path / "old", tmp_path / "new"
    new.mkdir()
    for folder in ("usr/bin", "data/venv/bin", "home/me/.ssh", "a/b"):
        (old / folder).mkdir(parents=True)
    (old / "bin").symlink_to("usr/bin")
    (old / "home/me/venv").symlink_to("/data/venv")
    (old / "a/up").symlink_to("../data")
    (old / "a/through").symlink_to("up/../home")
    (old / "loop").symlink_to("loop")
    (old / "gone").symlink_to("/nowhere")
    return new, old


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.mark.parametrize(
    ("path", "leads_to", "made"),
    [
        ("/usr/bin", "/usr/bin", {"usr"}),
        ("/bin", "/usr/bin", {"bin", "usr"}),
        ("/home/me/venv/bin", "/data/venv/bin",
         {"home", "home/me", "home/me/venv", "data", "data/venv"}),
        ("/a/up/venv", "/data/venv", {"a", "a/up", "data"}),
        ("/a/through/me", "/home/me", {"a", "a/through", "a/up", "data", "home"}),
    ],
)  # fmt: skip
def test_the_way_is_made_and_no_more(
    roots: tuple[Path, Path], path: str, leads_to: str, made: set[str]
) -> None:
    assert mirror(Path(path), *roots) == Path(leads_to)
    assert tree(roots[0]) == made
    assert mirror(Path(path), *roots) == Path(leads_to), "a second time changes nothing"


@pytest.mark.parametrize("path", ["/nowhere", "/loop", "/gone", "/usr/none/deeper"])
def test_what_is_not_there_outside_is_not_there_inside(roots: tuple[Path, Path], path: str) -> None:
    assert mirror(Path(path), *roots) is None


def test_nothing_that_tells_of_users_or_services() -> None:
    paths = readable.readable_paths()
    for private in ("/etc", "/opt", "/run", "/var", "/root", "/home", "/proc", "/sys", "/", "/tmp"):
        assert Path(private) not in paths
    assert not [path for path in paths if path.is_relative_to("/etc/ssh")]
    assert Path("/etc/passwd") not in paths
    assert Path(sys.executable).parent in paths or Path(sys.prefix) in paths


def test_a_python_whose_prefix_is_the_root_opens_its_folders_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """/bin/python3, where /bin is a link to usr/bin: everything was read."""
    for name in ("prefix", "base_prefix", "exec_prefix"):
        monkeypatch.setattr(sys, name, "/")
    assert Path("/") not in readable.readable_paths.__wrapped__()


def test_a_checkout_that_is_an_environment_s_root_stays_shut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m venv .`"""
    for name in ("bin", "lib", "results", "submissions"):
        (tmp_path / name).mkdir()
    (tmp_path / "pyvenv.cfg").touch()
    for name in ("prefix", "exec_prefix"):
        monkeypatch.setattr(sys, name, str(tmp_path))
    monkeypatch.setattr(readable.sysconfig, "get_paths", lambda: {"data": str(tmp_path)})
    mine = [p.name for p in readable.readable_paths.__wrapped__() if tmp_path in (p, *p.parents)]
    assert mine == ["bin", "lib", "pyvenv.cfg"]


def test_compilers_outside_usr_are_found_by_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolset, stray = tmp_path / "toolset", tmp_path / "work"
    (toolset / "lib64" / "gcc").mkdir(parents=True)
    (tmp_path / "link").symlink_to("toolset")
    tools = {"g++": tmp_path / "link" / "bin" / "g++", "gcc": stray / "bin" / "gcc"}
    for tool in (toolset / "bin" / "g++", tools["gcc"]):
        tool.parent.mkdir(parents=True)
        tool.touch()
    monkeypatch.setattr(readable.shutil, "which", tools.get)
    found = list(readable.compilers(readable.shut()))
    assert {toolset, tmp_path / "link"} <= set(found), "under both names"
    assert stray not in found, "a wrapper in somebody's folder does not open the folder"


@pytest.mark.parametrize("below", ["", ".local", "mine", "many"])
@pytest.mark.parametrize("by", ["gcc", "nvcc", "CUDA_HOME"])
def test_of_a_home_a_compiler_opens_its_own_folders_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch, below: str, by: str
) -> None:
    """`./configure --prefix=$HOME`, ~/.local, and one beside submissions or inside one.

    No link that leads elsewhere: a hand-in so called had the person's keys opened to all.
    """
    prefix = home / below
    for name in ("bin", "lib64/gcc", "nvvm/bin", "share/keyrings", "x86_64-pc-linux-gnu", "entry"):
        (prefix / name).mkdir(parents=True)
    (home / "keys").mkdir()
    (prefix / "lib32").symlink_to(home / "keys")  # a hand-in, unpacked beside them
    (prefix / "include").symlink_to("nvvm/bin")
    tool = prefix / "bin" / by
    tool.touch()
    monkeypatch.setattr(readable.shutil, "which", {by: tool}.get)
    for key in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(key, raising=False)
    if by == "CUDA_HOME":
        monkeypatch.setenv(by, str(prefix))
    deny = DenyList((home,), (), (home / "mine", home / "many" / "entry"))
    found = {path.relative_to(prefix).as_posix() for path in readable.compilers(deny)}
    inside = {path.name for path in (prefix / "lib",) if path.exists()}
    own = {"bin", "include", "lib64", "nvvm", "x86_64-pc-linux-gnu", *inside}
    assert found == (set() if below == "mine" else own)


def test_no_link_leads_into_a_part_of_a_compiler_that_stays_shut(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = home / "lib" / "board"
    (home / "bin").mkdir()
    (board / "results").mkdir(parents=True)
    (board / project.MARK).touch()
    (home / "lib32").symlink_to("lib/board/results")
    monkeypatch.setattr(readable.shutil, "which", lambda _: None)
    monkeypatch.setenv("CUDA_HOME", str(home))
    assert list(readable.compilers(DenyList((home,), ()))) == [home / "bin"]


FORWARD = "def custom_attention_forward(q, k, v, causal=True, sm_scale=None): ...\n"


def request_of(tmp_path: Path, *entries: str) -> Request:
    for entry in entries:
        place = tmp_path / entry
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(FORWARD)
    names = [tmp_path / e if e.count("/") < 2 else (tmp_path / e).parent for e in entries]
    found = find_entrants(map(str, names), tmp_path / "root", Kind.SUBMISSION, None)
    suite = Suite(name="s", cases=(Case(name="c", batch=1, heads=1, seqlen=1, headdim=64),))
    return Request(suite, Machine(), tuple(found), "", cache=tmp_path / "cache")


def test_what_holds_a_submission_or_lies_in_one_is_shut_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it would be opened: rivals lie there, and what no hash covers."""
    deny = request_of(tmp_path, "many/one/submission.py", "files/bare.py").shut
    places = {"many": "it holds", "many/one": "it is", "many/one/build": "it lies in",
              "files": "it holds", "files/lib": "", "other": ""}  # fmt: skip
    for name, why in places.items():
        (tmp_path / name).mkdir(exist_ok=True)
        said = deny.refusal(tmp_path / name)
        assert said.startswith(why), name
        assert bool(said) == bool(why), name
    monkeypatch.delenv("PYTHONPATH", raising=False)
    editable = [str(tmp_path / name) for name in ("many", "other")]
    monkeypatch.setattr(sys, "path", ["", *sys.path, *editable])
    assert list(readable.refused(deny)) == editable[:1]
    assert not set(readable.opened(deny)) & {tmp_path / name for name, why in places.items() if why}


@pytest.mark.parametrize("file", ["manifest.yaml", "submission.py"])
def test_a_submission_that_nobody_entered_is_shut_as_well(
    home: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever measured a stranger's kernel with their own on the import path showed it to him."""
    mine, packages = home / "lib" / "fast", home / "lib" / "fast" / "site-packages"
    packages.mkdir()
    (mine / "build").mkdir()
    (mine / file).touch()
    assert project.is_submission(mine)
    deny = shut(home)
    assert deny.refusal(mine) == f"it is {mine}"
    assert deny.refusal(home / "lib") == f"it holds {mine}"
    assert deny.refusal(mine / "build") == f"it lies in {mine}"
    assert not deny.refusal(packages)
    (packages / "kernel").mkdir()
    (packages / "kernel" / file).touch()
    assert not deny.refusal(packages), "an installed one is a package"
    monkeypatch.setattr(sys, "path", [*sys.path, str(mine)])
    assert readable.refused(deny)[str(mine)] == f"it is {mine}"
    (home / file).touch()
    (home / "other").mkdir()
    assert not deny.refusal(home / "other"), "a home is no submission, whatever lies there"


def test_every_part_of_a_request_keeps_the_submissions_of_the_whole_shut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit of a campaign knew its own entrants alone: a rival's folder on the path was open."""
    names = ["mine/submission.py", "looks/submission.py", "far/off/submission.py", "lib/bare.py"]
    request_of(tmp_path, *names)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "mine"), str(tmp_path / "lib")])
    case = Case(name="c", batch=1, heads=1, seqlen=16, headdim=64)
    suite = Suite(name="s", device="cpu", cases=(case,), against="sdpa", baselines=())
    asked = [str(tmp_path / name) for name in ("mine", "looks", "far/off", "lib/bare.py")]
    request = catalog_request.resolve(asked, [], suite, Machine(), "sdpa", ROOT, 2)
    kept = {tmp_path / "mine", tmp_path / "lib" / "bare.py"}  # and not what no path opens
    parts = [unit.request for unit in plan_units(request)]
    parts += [Unit.model_validate_json(to_text(unit)).request for unit in plan_units(request)]
    for part in (*parts, *(p.without(e.name, ["c"]) for p in parts for e in p.entrants)):
        assert kept <= set(part.entered) | set(part.shut.entered)
        assert set(part.entered) == kept
        assert not {tmp_path / "mine", tmp_path / "lib"}.intersection(readable.opened(part.shut))
    assert len(parts) == 8


def test_of_what_comes_along_no_submission_shuts_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_request, "HOME", tmp_path / "site-packages" / "attnboard")
    deny = request_of(tmp_path, "site-packages/attnboard/submissions/own/submission.py").shut
    assert deny.entered == ()


@pytest.mark.parametrize(
    ("entries", "shuts"),
    [(":/x", True), ("/x:", True), ("/x::/y", True), (".", True), ("lib", False),
     (":{here}", False), ("{here}", False)],
)  # fmt: skip
def test_the_current_folder_is_opened_by_its_whole_path_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch, entries: str, shuts: bool
) -> None:
    """`PYTHONPATH=$PYTHONPATH:/x` in a shell that had none."""
    here = home / "work"
    (here / "lib").mkdir(parents=True)
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", entries.format(here=here))
    wanted = [str(here / e) for e in entries.format(here=here).split(":")]
    monkeypatch.setattr(sys, "path", [*sys.path, *wanted])  # as Python reads it
    deny = replace(readable.shut(), homes=(home,))
    opened = {here, here / "lib"}.intersection(readable.opened(deny))
    assert opened == (set() if shuts else {here / "lib"} if entries == "lib" else {here})
    assert (str(here) in readable.refused(deny)) == shuts
    assert (str(here) in readable.import_path()) == (str(here) in entries.format(here=here))


@pytest.mark.parametrize(
    ("start", "entries"),
    [([str(ROOT / "run.py")], ":/x"), (["-m", "attnboard"], "."), (["-m", "attnboard"], "x/../")],
)
def test_nothing_is_imported_from_a_current_folder_that_has_no_name(
    tmp_path: Path, start: list[str], entries: str
) -> None:
    """A submission called as a package ran in the engine."""
    for package in ("pydantic", "argparse", "yaml", "__future__", "pathlib", "signal"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('a submission runs')")
    if start[0] == "-m":  # which finds ours there alone
        entries += os.pathsep + str(ROOT)
    env = {**os.environ, "PYTHONPATH": entries, "ATTNBOARD_ROOT": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *start, "completion", "bash"], cwd=tmp_path, env=env, timeout=60,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "a submission runs" not in done.stderr
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("PYTHONPATH: the current folder is left out; write its whole")


@pytest.mark.parametrize(
    ("key", "entries", "kept", "again"),
    [("PATH", "/x:", "/x", ""), ("PYTHONPATH", ":{here}", "{here}", ""),
     ("PYTHONPATH", ";/x", None, ""), ("LD_LIBRARY_PATH", ";/x", "/x", ""),
     ("LD_LIBRARY_PATH", "/x::lib:./", "/x:lib", ""), ("LD_LIBRARY_PATH", "lib:/y", None, ""),
     ("LD_LIBRARY_PATH", "", None, ""), ("LD_LIBRARY_PATH", ":/x", "/x", "os.environ |= dirty; ")],
)  # fmt: skip
def test_a_search_path_that_means_the_current_folder_by_no_name_is_left_once(
    tmp_path: Path, key: str, entries: str, kept: str | None, again: str
) -> None:
    """The engine loaded ./libnvidia-ml.so.1, with `LD_LIBRARY_PATH=$LD_LIBRARY_PATH:/x`.

    again: a wrapper around Python sets it anew at each start.
    """
    own = {"PATH": os.defpath, key: entries.format(here=tmp_path)}
    code = f"import os, sys; dirty = {own}; {again}sys.path.insert(0, {str(ROOT)!r}); "
    code += "import attnboard; print('once'); attnboard.leave_here(); "
    code += f"print(os.environ[{key!r}], os.getpid())"
    with subprocess.Popen(
        [sys.executable, "-u", "-c", code], cwd=tmp_path, env=own, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        out, err = process.communicate(timeout=60)
    left = own[key] if kept is None else kept.format(here=tmp_path)
    assert out.splitlines() == ["once"] * (1 + bool(kept)) + [f"{left} {process.pid}"]
    assert err.count("left out") == bool(kept)


def test_a_current_folder_that_is_gone_ends_no_command(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    line = f"rmdir {tmp_path / 'gone'}; exec {sys.executable} {ROOT / 'run.py'} --root {ROOT} list suites"
    done = subprocess.run(
        line, shell=True, cwd=tmp_path / "gone", capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_one_gpu_s_node_and_the_control_nodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """NVSwitch's, GPUDirect Storage's and the channels of IMEX are no part of a GPU."""
    others = "nvidia-nvswitchctl nvidia-nvswitch0 nvidia-fs0 nvidia-caps-imex-channels/channel0"
    caps = {n: f"nvidia-caps/nvidia-cap{n}" for n in (1, 2, 3, 137, 138, 272, 273, 4322, 4323)}
    control = {"nvidiactl", "nvidia-uvm"}
    for name in (*others.split(), *control, "nvidia0", "nvidia1", "nvidia10", *caps.values()):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(readable, "Path", lambda at: tmp_path / at.removeprefix("/dev").strip("/"))

    def shown(*minor: int) -> set[str]:
        return {str(path.relative_to(tmp_path)) for path in readable.gpu_nodes(*minor)}

    everywhere = {caps[n] for n in caps if 3 <= n <= 4322}
    assert shown() == {"nvidia0", "nvidia1", "nvidia10", *control, *everywhere}
    assert shown(1) == {"nvidia1", *control, caps[138], caps[272]}
