"""init, baselines, doctor, completion: a newcomer's first minutes."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from harness import __version__
from harness.catalog.entrants import load_entrant
from harness.cli import main
from harness.cli.commands import baselines, completion, doctor, init
from harness.errors import Exit, UnavailableError, UsageError
from harness.problems import get_problem
from harness.process.project import MARK
from harness.schema import Kind, Machine, Manifest

ROOT = Path(__file__).resolve().parents[2]


def call(module: object, *words: str) -> int:
    args = main.parse_args(words)
    return module.run(args)


# --------------------------------------------------------------------------- init


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / MARK).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("template", sorted(init.TEMPLATES))
def test_every_template_loads_as_it_is(
    root: Path, template: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if not (ROOT / init.TEMPLATES[template]).exists():
        pytest.skip(f"{init.TEMPLATES[template]} is not in this checkout")
    words = ["init", "mine", "--template", template, "--author", "O'Neil: \\1"]
    assert call(init, *words) == 0
    folder = root / "submissions" / "mine"
    manifest = yaml.safe_load((folder / "manifest.yaml").read_text())
    assert (manifest["name"], manifest["author"]) == ("mine", "O'Neil: \\1")
    assert (folder / "NOTES.md").read_text().startswith("# mine")
    sources = [path.read_text() for path in folder.rglob("*") if path.is_file()]
    assert not any(Path(init.TEMPLATES[template]).name in text for text in sources)
    entrant = load_entrant(folder, Kind.SUBMISSION, get_problem("attention_forward"))
    assert entrant.name == "mine"
    assert capsys.readouterr().out.endswith("next: python run.py --submission mine\n")


def test_a_folder_that_is_there_is_never_touched(root: Path) -> None:
    call(init, "init", "mine")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match="is there already"):
        call(init, "init", "mine", "--template", "gluon")
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_a_folder_that_cannot_be_made_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir("/proc")
    assert main.exit_code_of(lambda: call(init, "init", "aa", "--project")) == Exit.STORAGE
    assert capsys.readouterr().err.startswith("error: [Errno 2] No such file or directory: 'aa")


@pytest.mark.parametrize("kind", [".py", ".cu"])
def test_a_bare_file_keeps_its_name(root: Path, kind: str) -> None:
    (root / "submissions").mkdir()
    (root / "submissions" / f"mine{kind}").touch()
    with pytest.raises(UsageError, match=rf"mine\{kind} is there already"):
        call(init, "init", "mine")
    assert len([*(root / "submissions").iterdir()]) == 1


def test_a_current_folder_that_is_gone_is_told(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "gone").mkdir()
    monkeypatch.chdir(root / "gone")
    (root / "gone").rmdir()
    assert main.exit_code_of(lambda: call(init, "init", "mine")) == Exit.USAGE
    assert capsys.readouterr().err == "error: the current folder is gone\n  next: cd to another\n"


def test_a_link_to_nothing_is_there_already(root: Path) -> None:
    (root / "submissions").mkdir()
    (root / "submissions" / "mine").symlink_to("/nowhere/at/all")
    with pytest.raises(UsageError, match="is there already"):
        call(init, "init", "mine")


@pytest.mark.parametrize("words", [[], ["--author", "J\udcf6rg"]])
def test_an_author_of_other_bytes_has_a_manifest_that_is_read(
    root: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    (root / "gitconfig").write_bytes(b'[user]\nname = "J\xf6rg"\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(root / "gitconfig"))
    assert call(init, "init", "mine", *words) == 0
    entrant = load_entrant(root / "submissions" / "mine", Kind.SUBMISSION, None)
    assert entrant.manifest.author in {"J?rg", "J\ufffdrg"}


@pytest.mark.parametrize(
    ("name", "near"), [("../x", "x"), ("My Kernel", "my_kernel"), ("9", "mine")]
)
def test_a_name_that_is_no_folder_gets_a_better_one(root: Path, name: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"init {near} "):
        call(init, "init", name)


@pytest.mark.parametrize("name", ["all", "null", "sdpa", "own_baseline"])
def test_a_name_that_no_submission_may_bear_gets_no_folder(root: Path, name: str) -> None:
    (root / "baselines" / "own_baseline").mkdir(parents=True)
    (root / "baselines" / "own_baseline" / "manifest.yaml").write_text("name: own_baseline\n")
    with pytest.raises(UsageError, match=f"'{name}' stands for a baseline"):
        call(init, "init", name)
    assert not (root / "submissions").exists()
    assert call(init, "init", name, "--project") == 0  # a project may be called so
    assert call(init, "init", "mine") == 0


def test_a_template_that_is_missing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init, "HOME", root)
    with pytest.raises(UnavailableError, match="no triton template"):
        call(init, "init", "mine")


@pytest.mark.parametrize("home", [None, ROOT], ids=["a wheel", "pip install -e of a checkout"])
def test_where_there_is_no_project_one_is_made(
    home: Path | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(init, "find", lambda: home)
    assert call(init, "init", "demo", "--template", "gluon", "--author", "me") == 0
    told = capsys.readouterr().out
    assert told.startswith("demo/submissions/mine: NOTES.md, manifest.yaml, submission.py\n")
    assert told.endswith("next: cd demo && attnboard run mine\n")
    demo = tmp_path / "demo"
    assert (demo / MARK).is_file()
    assert "attnboard run mine" in (demo / "README.md").read_text()
    assert "results/cpu/" in (demo / ".gitignore").read_text()
    workflow = yaml.safe_load((demo / ".github" / "workflows" / "attnboard.yml").read_text())
    assert workflow["env"]["ATTNBOARD"] == f"attnboard=={__version__}"
    assert workflow["jobs"]["check"]["steps"][-1]["run"] == "attnboard run all"
    monkeypatch.chdir(demo)
    monkeypatch.undo()
    monkeypatch.chdir(demo)
    assert call(init, "init", "more") == 0  # now there is one
    assert (demo / "submissions" / "more" / "submission.py").is_file()
    with pytest.raises(UsageError, match="is there already"):
        call(init, "init", "submissions", "--project")
    assert call(init, "init", "inner", "--project") == 0
    assert (demo / "inner" / MARK).is_file()


# --------------------------------------------------------------------------- baselines


def test_baselines_say_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(baselines, "baselines") == 0
    out = capsys.readouterr().out
    assert "sdpa " in out
    forward, backward = out.split("next, attention_backward: python run.py")
    assert "next, attention_forward: python run.py --submission NAME --baselines" in forward
    assert "sdpa_backward" in backward
    assert "sdpa_math" not in backward  # two problems never share a run


def test_baselines_check_is_an_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "base", lambda: tmp_path)
    for name, needs in (("here", "[]"), ("gone", "[no_such_package]")):
        folder = tmp_path / "baselines" / name
        folder.mkdir(parents=True)
        (folder / "manifest.yaml").write_text(f"name: {name}\nneeds: {{packages: {needs}}}\n")
    assert call(baselines, "baselines", "--check", "here") == 0
    assert call(baselines, "baselines", "--check", "gone") == 3
    assert call(baselines, "baselines", "--check", "unknown") == 3


def test_a_cuda_baseline_does_not_run_without_a_gpu() -> None:
    manifest = Manifest(name="x", language="cuda", needs={"compute_capability": "9.0"})
    assert "capability 9.0" in baselines.obstacle(manifest, Machine())
    assert "this GPU has 8.0" in baselines.obstacle(manifest, Machine(sms=108, capability="8.0"))
    assert baselines.obstacle(manifest, Machine(sms=132, capability="9.0")) == ""


# --------------------------------------------------------------------------- doctor


def test_doctor_looks_at_everything(capsys: pytest.CaptureFixture[str]) -> None:
    code = call(doctor, "doctor", "--json")
    told = json.loads(capsys.readouterr().out)
    names = {line["what"] for line in told["lines"]}
    assert {"python", "torch", "triton", "gpu", "nvcc", "ncu", "landlock", "results/"} <= names
    assert code == (0 if told["ready"] else 3)
    assert all(line["next"] for line in told["lines"] if line["mark"] == "missing")


def test_doctor_says_where_there_is_room_for_few_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(room: int) -> tuple[str, str]:
        monkeypatch.setattr(doctor.cgroup, "room", lambda: room)
        (line,) = (line for line in doctor.walls() if line.what == "processes and threads")
        return line.mark, line.found

    assert told(1 << 22) == ("ok", "1024 of each submission")
    assert told(900) == (
        "note",
        "300 of a submission, of 900 that the container or the kernel allow",
    )


def test_doctor_says_where_no_worker_can_be_locked() -> None:
    line = doctor.lock("libc.so.6")
    assert line.mark == "note"
    assert "'unlocked'" in line.found
    assert "570" in line.next


def test_doctor_names_a_package_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": "2.9.1+cu128", "numpy": ""}
    monkeypatch.setattr(doctor, "version_of", lambda name: versions.get(name, "99.0"))
    lines = {line.what: line for line in doctor.packages()}
    assert lines["torch"].mark == "missing"
    assert "torch>=2.11" in lines["torch"].next
    assert lines["numpy"].found == "not installed"
    assert lines["scipy"].mark == "ok"


def test_doctor_asks_for_the_versions_that_are_declared() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    _, _, after = text.partition("\ndependencies = [")
    declared = re.findall(r'^    "([\w-]+)>=([\d.]+)"', after.partition("\n]")[0], re.MULTILINE)
    assert dict(declared) == doctor.NEEDED


def test_doctor_says_where_every_import_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "some folder" / "heavy"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(package.parent))
    (line,) = doctor.bytecode("heavy")
    assert line.mark == "note"
    words = shlex.split(line.next)
    assert words[1:3] == ["-m", "compileall"]
    assert str(package) in words
    subprocess.run([*words[:-2]], check=True)  # without triton and sympy, which are not there
    assert [line.mark for line in doctor.bytecode("heavy")] == ["ok"]
    assert not list(doctor.bytecode("nobody_has_this"))


def test_doctor_without_a_gpu_can_be_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "inspect_machine", Machine)
    assert call(doctor, "doctor", "--need-gpu") == 3


def test_doctor_ends_in_the_next_move(capsys: pytest.CaptureFixture[str]) -> None:
    call(doctor, "doctor")
    assert capsys.readouterr().out.splitlines()[-1].startswith("next: ")


# --------------------------------------------------------------------------- completion


def complete(words: list[str], cwd: Path = ROOT) -> list[str]:
    """What bash offers after `words`, the last of which is being typed."""
    quoted = " ".join(f"'{word}'" for word in words)
    code = f"{completion.script('bash')}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}\n"
    code += '_attnboard; printf "%s\\n" "${COMPREPLY[@]}"'
    told = subprocess.run(["bash", "-c", code], capture_output=True, text=True, cwd=cwd, check=True)
    assert not told.stderr
    return told.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["python", "run.py", "comp"], "compare"),
        (["python", "run.py", "triton_t"], "triton_template"),
        (["python", "run.py", "--subm"], "--submission"),
        (["python", "run.py", "--submission", "triton_t"], "triton_template"),
        (["python", "run.py", "compare", "a", "b", "--fail"], "--fail-on-regression"),
        (["./run.py", "init", "x", "--template", "glu"], "gluon"),
        (["python", "run.py", "--suite", "smo"], "smoke"),
    ],
)
def test_bash_offers(words: list[str], offered: str) -> None:
    assert offered in complete(words)


def test_bash_offers_a_projects_names_and_those_that_come_along(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "submissions" / "mine_own").mkdir(parents=True)
    (root / "configs").mkdir()
    asked = {"cwd": root / "configs"}
    assert complete(["attnboard", "run", "--submission", "mine_"], **asked) == ["mine_own"]
    assert complete(["attnboard", "--submission", "triton_tem"], **asked) == ["triton_template"]
    assert complete(["/x/bin/attnboard", "comp"], **asked) == ["compare", "completion"]
    assert "--root" in complete(["attnboard", "show", "mine", "--ro"], **asked)


def test_a_name_is_never_run_by_the_shell(root: Path) -> None:
    """`compgen -W` expands its words: a folder's name was a command, run when somebody types Tab."""
    for name in ("$(touch ran)", "`touch ran`", "a;touch ran", "fine"):
        (root / "submissions" / name).mkdir(parents=True)
    assert complete(["attnboard", "run", "--submission", "fin"], cwd=root) == ["fine"]
    assert complete(["attnboard", "fin"], cwd=root) == ["fine"]
    assert not list(root.rglob("ran"))


def test_other_python_scripts_are_left_alone() -> None:
    assert complete(["python", "other.py", "--subm"]) == []


def test_zsh_loads_the_bash_way() -> None:
    assert "bashcompinit" in completion.script("zsh")
