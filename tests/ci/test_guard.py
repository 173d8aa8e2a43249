"""The path guard, the staging of one commit, the CPU checks, the comment, and the workflows themselves."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from harness.schema import Manifest
from tests.ci.test_simulation import (
    GUARD,
    MANIFEST,
    OWNER,
    ROOT,
    SCRIPTS,
    STAGE,
    Hub,
    git,
    hub,
    origin,
    script,
)

TELL, CPU = script("tell"), script("cpu_checks")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
__all__ = ["hub", "origin"]


def edit(path: str, text: str = "x = 1\n") -> Callable[[Path], None]:
    return lambda work: Hub.write(work, path, text)


def guard(hub: Hub, change: Callable[[Path], None], author: str = OWNER) -> int:
    pull, commit = hub.pull(change)
    work = hub.folder / f"work{pull}"
    base = git(work, "rev-parse", "origin/main")
    words = ["--base", base, "--head", commit, "--author", author]
    return GUARD.main([*words, "--repo", str(work)])


def linked(work: Path) -> None:
    (work / "submissions" / "mine" / "k.py").symlink_to("../../harness/judge.py")


def moved(work: Path) -> None:
    git(work, "mv", "harness/judge.py", "submissions/mine/judge.py")


def deleted(work: Path) -> None:
    (work / "submissions" / "mine" / "submission.py").unlink()


def new_one(owners: str) -> Callable[[Path], None]:
    return edit("submissions/new_one/manifest.yaml", f"name: new_one\n{owners}\n")


def latin(work: Path) -> None:
    (work / "submissions" / "mine" / "manifest.yaml").write_bytes(
        MANIFEST.encode() + b"# caf\xe9\n"
    )


def gone(work: Path) -> None:
    shutil.rmtree(work / "submissions" / "mine")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (edit("submissions/mine/NOTES.md"), ""),
        (new_one(f"owners: [{OWNER}]"), ""),
        (new_one(f"owners: [someone, {OWNER.upper()}]  # two"), ""),
        (new_one(f"owners: [{OWNER}] \r"), ""),
        (new_one(f"owners:\n- {OWNER}"), f"there: owners: [{OWNER}]"),
        (new_one(f"owners: ['{OWNER}']"), f"there: owners: [{OWNER}]"),
        (new_one("owners: [someone]"), f"there: owners: [{OWNER}]"),
        (new_one(f"owners: [{OWNER}]\nowners: []"), f"there: owners: [{OWNER}]"),
        (new_one("owners: []"), "submissions/new_one/manifest.yaml: write a line of its own there"),
        (new_one(""), "submissions/new_one/manifest.yaml: write a line of its own there"),
        (edit("submissions/new_one/steps/01_first.py"), "new_one/manifest.yaml: write a line"),
        (
            edit("submissions/mine/manifest.yaml", "name: mine\n"),
            "mine/manifest.yaml: write a line",
        ),
        (edit("submissions/mine/manifest.yaml", "owners: [heir]\n"), ""),
        (gone, ""),
        (deleted, ""),
        (edit("README.md"), "outside submissions/"),
        (edit("submissions/loose.py"), "outside submissions/"),
        (edit(".github/workflows/x.yml"), "outside submissions/"),
        (edit("submissions/Mine/submission.py"), "small letters"),
        (edit("submissions/sdpa_cudnn/submission.py"), "'sdpa_cudnn' is the name of a baseline"),
        (edit("submissions/all/submission.py"), "'all' is the name of a baseline or a word"),
        (edit("submissions/bare/submission.py"), "submissions/bare is there already and names no"),
        (edit("submissions/mine/.hidden.py"), "plain letters"),
        (edit("submissions/mine/a b.py"), "plain letters"),
        (edit("submissions/mine/$(id).py"), "plain letters"),
        (edit("submissions/mine/lib.so"), "kind '.so'"),
        *(
            (edit(f"submissions/mine/{folder}/a.txt"), "a folder called build")
            for folder in (
                "build",
                "dist",
                "__pycache__",
                "me.egg-info",
                "lib.so",
                "b/c.cubin",
                "d.ncu-rep/e",
                "f.pyc",
            )
        ),
        (edit("submissions/build/submission.py"), "a folder called build"),
        (edit("submissions/mine/conftest"), "kind ''"),
        (edit("submissions/mine/pyproject.toml"), "kind '.toml'"),
        (edit("submissions/mine/big.py", "x" * (2 << 20)), "at most 1024"),
        (edit("submissions/mine/manifest.yaml", "#" * (65 << 10)), "at most 64"),
        (edit("submissions/mine/null.py", "a\0b"), "a binary file"),
        (latin, "'submissions/mine/manifest.yaml': not UTF-8"),
        (linked, "a link or submodule"),
        (moved, "'harness/judge.py': outside"),
    ],
)
def test_path_guard(
    hub: Hub, change: Callable[[Path], None], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guard(hub, change) == int(bool(reason))
    assert reason in capsys.readouterr().out


def handed_over(work: Path) -> None:
    edit("submissions/mine/manifest.yaml", MANIFEST.replace(OWNER, "stranger"))(work)


@pytest.mark.parametrize("author", ["stranger", "", f"{OWNER},stranger", "octo"])
@pytest.mark.parametrize(
    "change",
    [
        edit("submissions/mine/NOTES.md"),
        edit("submissions/mine/more.py"),
        deleted,
        gone,
        handed_over,
    ],
)
def test_an_entry_is_its_owners(
    hub: Hub, change: Callable[[Path], None], author: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guard(hub, change, author) == 1
    assert f"submissions/mine is there already and belongs to {OWNER}" in capsys.readouterr().out
    assert guard(hub, change, OWNER.upper()) == 0


def test_an_entry_without_owners_is_nobodys_to_change(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.write(hub.trusted, "submissions/mine/manifest.yaml", "name: mine\nlanguage: triton\n")
    hub.commit(hub.trusted, "no owners")
    git(hub.trusted, "push", "--quiet", "origin", "HEAD:main")
    assert guard(hub, handed_over, "stranger") == 1
    assert "names no owners in its manifest" in capsys.readouterr().out
    assert guard(hub, new_one("owners: [stranger]"), "stranger") == 0


def test_an_empty_tree_is_no_entry(hub: Hub) -> None:
    """No diff and no checkout shows it; merged, it took a rival's name for a baseline's."""

    def tree(*lines: str) -> str:
        run = ["git", "-C", str(hub.trusted), "mktree"]
        told = "\n".join((*lines, ""))
        return subprocess.run(run, input=told, text=True, check=True, stdout=-1).stdout.strip()

    top = git(hub.trusted, "ls-tree", "HEAD").splitlines()
    below = git(hub.trusted, "ls-tree", "HEAD", "baselines/").splitlines()
    below = [line.replace("\tbaselines/", "\t") for line in below]
    folder = tree(*below, f"040000 tree {tree()}\tmine")
    others = [line for line in top if not line.endswith("\tbaselines")]
    whole = tree(*others, f"040000 tree {folder}\tbaselines")
    base = git(hub.trusted, "commit-tree", whole, "-p", "HEAD", "-m", "nothing to see")
    assert git(hub.trusted, "ls-tree", base, "baselines/mine")
    git(hub.trusted, "push", "--quiet", "origin", f"{base}:main")
    assert guard(hub, edit("submissions/mine/more.py")) == 0


def test_an_entry_whose_manifest_was_never_utf8_is_its_owners(hub: Hub) -> None:
    latin(hub.trusted)
    hub.commit(hub.trusted, "of before the guard asked")
    git(hub.trusted, "push", "--quiet", "origin", "HEAD:main")
    assert guard(hub, edit("submissions/mine/more.py"), "stranger") == 1
    assert guard(hub, edit("submissions/mine/more.py")) == 0


def test_a_folder_that_changed_meanwhile_asks_for_a_rebase(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    """What runs is the whole folder of the commit; the diff would not show what is old in it."""
    pull, commit = hub.pull(edit("submissions/mine/extra.txt"))
    hub.write(hub.trusted, "submissions/mine/submission.py", "mended = True\n")
    hub.commit(hub.trusted, "mended")
    git(hub.trusted, "push", "--quiet", "origin", "HEAD:main")
    work = hub.folder / f"work{pull}"
    git(work, "fetch", "--quiet", "origin")
    words = ["--base", git(work, "rev-parse", "origin/main"), "--head", commit, "--author", OWNER]
    assert GUARD.main([*words, "--repo", str(work)]) == 1
    assert "submissions/mine has changed since this branch began" in capsys.readouterr().out
    assert hub.stage(pull, commit, OWNER) == 1


def test_figures_in_its_notes_ask_for_no_rebase(hub: Hub) -> None:
    pull, commit = hub.pull(edit("submissions/mine/extra.txt"))
    hub.write(hub.trusted, "submissions/mine/NOTES.md", "591.6 TFLOP/s\n")
    hub.commit(hub.trusted, "the board of today")
    git(hub.trusted, "push", "--quiet", "origin", "HEAD:main")
    assert hub.stage(pull, commit, OWNER) == 0


@pytest.mark.parametrize("row", ["removed", "removed/steps/01_first"])
def test_a_name_that_has_records_and_no_folder_is_nobodys(
    hub: Hub, row: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f'{{"run":"r","date":"d","entry":"{row}"}}\n'
    hub.write(hub.trusted, "results/gpu/day.jsonl", line)
    hub.commit(hub.trusted, "its folder is gone")
    git(hub.trusted, "push", "--quiet", "origin", "HEAD:main")
    assert guard(hub, edit("submissions/removed/submission.py"), "stranger") == 1
    assert "'removed' has records under results/ and no folder" in capsys.readouterr().out
    manifest = edit("submissions/remove/manifest.yaml", "owners: [stranger]\n")
    assert guard(hub, manifest, "stranger") == 0


def test_what_somebody_else_brought_meanwhile_is_theirs(hub: Hub) -> None:
    pull, commit = hub.pull(edit("submissions/wanted/submission.py"))
    hub.write(hub.trusted, "submissions/wanted/submission.py", "first\n")
    hub.commit(hub.trusted, "merged first")
    git(hub.trusted, "push", "--quiet", "origin", "HEAD:main")
    assert hub.stage(pull, commit, "stranger") == 1


def test_the_guard_reads_owners_as_the_schema_does() -> None:
    for told in (["octo-cat"], ["a", "B-2", "c3"], []):
        text = f"name: x\nowners: [{', '.join(told)}]  # who\n"
        line = GUARD.OWNERS.search(text)
        manifest = Manifest.model_validate(yaml.safe_load(text))
        assert [w.strip() for w in line[1].split(",") if w.strip()] == list(manifest.owners) == told


@pytest.mark.parametrize("order", ["[error]", "vso[task.x]", "teamcity[x]"])
def test_no_path_is_an_order_to_the_runner(
    hub: Hub, capsys: pytest.CaptureFixture[str], order: str
) -> None:
    assert guard(hub, edit(f"submissions/mine/##{order}x.py")) == 1
    assert f"# #{order}x" in capsys.readouterr().out


@pytest.mark.parametrize("mode", ["100644", "040000"])
def test_a_path_that_a_tree_holds_twice_is_refused(
    hub: Hub, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the first of the two is the base's own, which no diff tells."""
    work, base = hub.trusted, git(hub.trusted, "rev-parse", "HEAD")

    def made(kind: str, body: bytes) -> str:
        words = ["git", "-C", str(work), "hash-object", "-t", kind, "-w", "--literally", "--stdin"]
        return subprocess.run(words, input=body, capture_output=True, check=True).stdout.decode()

    def changed(tree: str, name: str, *instead: tuple[str, str]) -> str:
        """The tree with other entries where `name` is, its own first where it has no sha."""
        body = b""
        for line in git(work, "ls-tree", tree).splitlines():
            own_mode, _, sha, own = line.split()
            for each, other in instead if own == name else ((own_mode, sha),):
                body += f"{each.lstrip('0')} {own}\0".encode() + bytes.fromhex(other or sha)
        return made("tree", body).strip()

    other = made("blob", b"x = 2\n").strip()
    second = other if mode == "100644" else changed("HEAD:configs", "none")
    mine = changed("HEAD:submissions/mine", "manifest.yaml", ("100644", ""), (mode, second))
    tree = changed(
        "HEAD", "submissions", ("040000", changed("HEAD:submissions", "mine", ("040000", mine)))
    )
    head = git(work, "commit-tree", tree, "-p", base, "-m", "twice")
    words = ["--base", base, "--head", head, "--author", OWNER, "--repo", str(work)]
    assert GUARD.main(words) == 1
    told = {"100644": "' stands in the tree twice", "040000": "/.*: a folder called build"}
    said = f"'submissions/mine/manifest.yaml{told[mode]}"
    assert re.search(said, capsys.readouterr().out)
    with pytest.raises((SystemExit, FileExistsError)):
        STAGE._copy(work, head, "mine")


def test_two_submissions_at_once_are_refused(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    def both(work: Path) -> None:
        edit("submissions/one_more/submission.py")(work)
        edit("submissions/another/submission.py")(work)

    assert guard(hub, both) == 1
    assert "one at a time" in capsys.readouterr().out


def test_the_name_goes_to_the_next_step(hub: Hub, tmp_path: Path) -> None:
    pull, commit = hub.pull(edit("submissions/mine/NOTES.md"))
    work, output = hub.folder / f"work{pull}", tmp_path / "output"
    base = git(work, "rev-parse", "origin/main")
    words = ["--base", base, "--head", commit, "--author", OWNER, "--repo", str(work)]
    assert GUARD.main([*words, "--output", str(output)]) == 0
    assert output.read_text() == "name=mine\n"


def test_main_moving_on_is_not_the_pull_requests_change(hub: Hub) -> None:
    pull, commit = hub.pull(edit("submissions/mine/NOTES.md"))
    hub.write(hub.trusted, "README.md", "newer\n")
    hub.commit(hub.trusted, "main moves on")
    git(hub.trusted, "fetch", "--quiet", "origin", f"refs/pull/{pull}/head")
    base = git(hub.trusted, "rev-parse", "HEAD")
    words = ["--base", base, "--head", commit, "--author", OWNER]
    assert GUARD.main([*words, "--repo", str(hub.trusted)]) == 0


@pytest.mark.parametrize("merged", [False, True])
def test_a_head_that_takes_a_commit_back_is_refused_once_main_has_it(
    hub: Hub, capsys: pytest.CaptureFixture[str], merged: bool
) -> None:
    """docs/ci-runner.md asks for the check again where main has moved: before, no diff shows it."""
    work, base = hub.trusted, git(hub.trusted, "rev-parse", "HEAD")
    hub.write(work, "harness/judge.py", "mended = True\n")
    mended = hub.commit(work, "a mend on a branch")
    if merged:
        git(work, "checkout", "--quiet", "--force", base)
        hub.write(work, "submissions/mine/NOTES.md", "first\n")
        hub.commit(work, "words")
        git(work, "merge", "-s", "ours", "--no-ff", "--no-edit", mended)
    else:
        git(work, "revert", "--no-edit", mended)
    hub.write(work, "submissions/mine/NOTES.md", "words\n")
    head = hub.commit(work, "own")
    words = ["--head", head, "--author", OWNER, "--repo", str(work)]
    assert GUARD.main([*words, "--base", base]) == 0
    assert GUARD.main([*words, "--base", mended]) == 1
    assert "'harness/judge.py'" in capsys.readouterr().out


def test_a_merge_that_would_take_back_what_main_has_is_refused(hub: Hub) -> None:
    """main merged two lines; the head merges them too, but keeps nothing of one of them."""
    work, start = hub.trusted, git(hub.trusted, "rev-parse", "HEAD")
    hub.write(work, "harness/other.py", "other = True\n")
    lines = [hub.commit(work, "one line")]
    git(work, "checkout", "--quiet", start)
    hub.write(work, "harness/judge.py", "mended = True\n")
    lines.append(hub.commit(work, "another line"))
    git(work, "merge", "--quiet", "--no-edit", lines[0])
    base = git(work, "rev-parse", "HEAD")
    for kept in lines:  # git calls one of the two the place where the head left
        git(work, "checkout", "--quiet", "--force", kept)
        hub.write(work, "submissions/mine/NOTES.md", "words\n")
        git(work, "add", "--all")
        parents = [word for line in lines for word in ("-p", line)]
        head = git(work, "commit-tree", git(work, "write-tree"), *parents, "-m", "merge")
        words = ["--base", base, "--head", head, "--author", OWNER, "--repo", str(work)]
        with pytest.raises(SystemExit, match="leaves the base branch at several commits"):
            GUARD.main(words)


def test_a_branch_of_another_history_is_refused_with_its_reason(hub: Hub) -> None:
    work, base = hub.trusted, git(hub.trusted, "rev-parse", "HEAD")
    head = git(work, "commit-tree", git(work, "write-tree"), "-m", "of its own")
    words = ["--base", base, "--head", head, "--author", OWNER, "--repo", str(work)]
    with pytest.raises(SystemExit, match="refused: it shares no commit with the base branch\n"):
        GUARD.main(words)


@pytest.mark.parametrize("may_find_none", [True, False])
def test_a_git_that_was_killed_found_nothing_and_says_so(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, may_find_none: bool
) -> None:
    killed = hub.folder / "killed" / "git"
    killed.parent.mkdir()
    killed.write_text("#!/bin/sh\nkill -9 $$\n")
    killed.chmod(0o755)
    monkeypatch.setenv("PATH", str(killed.parent), prepend=os.pathsep)
    with pytest.raises(SystemExit, match="git grep x"):
        GUARD.git(hub.trusted, "grep", "x", may_find_none=may_find_none)


@pytest.mark.parametrize("words", [("main", "0" * 40), ("0" * 40, "--output=/etc/x"), ("", "")])
def test_a_hash_that_is_none_is_refused(words: tuple[str, str]) -> None:
    assert GUARD.main([f"--base={words[0]}", f"--head={words[1]}"]) == 1


# --------------------------------------------------------------------------- staging


def test_staging_takes_that_commit_and_no_other(hub: Hub) -> None:
    pull, first = hub.pull(edit("submissions/mine/NOTES.md", "first\n"))
    work = hub.folder / f"work{pull}"
    hub.write(work, "submissions/mine/NOTES.md", "second, after the maintainer looked\n")
    hub.commit(work, "later")
    git(work, "push", "--quiet", "origin", f"HEAD:refs/pull/{pull}/head")
    assert hub.stage(pull, first) == 0
    assert (hub.trusted / "submissions" / "mine" / "NOTES.md").read_text() == "first\n"


def test_a_commit_of_another_pull_request_is_refused(hub: Hub) -> None:
    _, other = hub.pull(edit("submissions/mine/NOTES.md", "other\n"))
    pull, _ = hub.pull(edit("submissions/mine/NOTES.md", "mine\n"))
    assert hub.stage(pull, other) == 1


def test_who_has_moved_on_does_not_take_his_measurement_back(hub: Hub) -> None:
    """Amended and pushed again behind the GPU's job, a commit that had failed was told nowhere."""
    pull, first = hub.pull(edit("submissions/mine/NOTES.md", "slower\n"))
    work = hub.folder / f"work{pull}"
    git(work, "commit", "--quiet", "--amend", "--message", "another")
    git(work, "push", "--quiet", "--force", "origin", f"HEAD:refs/pull/{pull}/head")
    assert hub.stage(pull, first) == 1
    assert hub.stage(None, first) == 0
    assert (hub.trusted / "submissions" / "mine" / "NOTES.md").read_text() == "slower\n"
    jobs = yaml.safe_load((ROOT / ".github/workflows/measure.yml").read_text())["jobs"]
    ways = [
        "--pull" in step["run"]
        for job in ("gpu", "board")
        for step in jobs[job]["steps"]
        if "stage.py" in step.get("run", "")
    ]
    assert ways == [True, False]


@pytest.mark.parametrize("pull", ["0", "1; id", "../1", ""])
def test_a_number_that_is_none_is_refused(hub: Hub, pull: str) -> None:
    with pytest.raises(SystemExit, match="by its number"):
        hub.stage(pull, "0" * 40)


def test_what_git_quotes_of_a_pull_request_is_no_order_to_the_runner(hub: Hub) -> None:
    url = '"-x\\n::error file=README.md::forged\\n##vso[error]forged"'
    text = f'[submodule "x"]\n\tpath = x\n\turl = {url}\n'
    pull, commit = hub.pull(lambda work: hub.write(work, ".gitmodules", text))
    with pytest.raises(SystemExit) as told:
        hub.stage(pull, commit)
    said = str(told.value)
    assert "forged" in said
    assert "\n" not in said
    assert "# #vso[error]" in said


# --------------------------------------------------------------------------- CPU checks


def test_cpu_checks_of_a_folder_that_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Hub.write(tmp_path, "submissions/bad/manifest.yaml", "name: bad\nlanguage: triton\n")
    Hub.write(tmp_path, "submissions/bad/submission.py", "def attention(q): return q\n")
    assert CPU.main(["bad", "--root", str(tmp_path)]) == 1
    assert "schema: FAILED" in capsys.readouterr().out


def test_no_compiler_quotes_an_order_to_the_runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "submissions" / "triton_template", tmp_path / "submissions" / "mine")
    Hub.write(tmp_path, "submissions/mine/manifest.yaml", "name: mine\nlanguage: triton\n")
    says = r"print('k.cu(1): error\n    ::warning title=Place 1::x\n\x85::add-mask::\xe9##[group]"
    says += (
        r'\n  File "judge.py", line 1, in x\nforged' + "')"
    )  # which setup-python's matcher takes
    words = [sys.executable, "-c", f"{says}; raise SystemExit(1)"]
    run = CPU._run
    monkeypatch.setattr(CPU, "_run", lambda command: run(words))
    monkeypatch.setattr(CPU, "interpret", lambda entrant: (False, "\x01::error::x\n ::stop::y"))
    assert CPU.main(["mine", "--root", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "warning title=Place 1" in out
    assert "##[" not in out
    assert not any(line.lstrip().startswith(("::", "File ")) for line in out.splitlines())


def test_what_this_machine_cannot_try_is_nobodys_fault() -> None:
    words = [sys.executable, "-c", "print('needs compute capability 9.0'); raise SystemExit(3)"]
    passed, told = CPU._run(words)
    assert passed is None
    assert "needs compute capability 9.0" in told


@pytest.mark.skipif(not shutil.which("ruff"), reason="no ruff: pip install ruff")
@pytest.mark.parametrize("file", ["submission.py", "venv/helper.py", "build/helper.py"])
def test_lint_finds_a_name_that_is_not_there(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Hub.write(tmp_path, ".gitignore", "build/\n")
    (tmp_path / ".git").mkdir()
    shutil.copytree(ROOT / "submissions" / "triton_template", tmp_path / "submissions" / "mine")
    Hub.write(tmp_path, "submissions/mine/manifest.yaml", "name: mine\nlanguage: triton\n")
    monkeypatch.setattr(CPU, "interpret", lambda entrant: (None, "not now"))
    assert CPU.main(["mine", "--root", str(tmp_path)]) == 0
    path = tmp_path / "submissions" / "mine" / file
    before = path.read_text() if path.exists() else ""
    Hub.write(
        tmp_path,
        f"submissions/mine/{file}",
        f"{before}\n\n# ruff: noqa\ndef f():\n    return no_such_name  # noqa\n",
    )
    assert CPU.main(["mine", "--root", str(tmp_path)]) == 1


# --------------------------------------------------------------------------- the comment


def test_one_comment_is_rewritten_and_a_strangers_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = {"id": 1, "body": TELL.MARK + " hello", "user": {"login": "stranger"}}
    ours = {"id": 2, "body": TELL.MARK + "\nold", "user": {"login": TELL.BOT}}
    pages, sent = [[theirs]], []

    def gh(*words: str, body: str | None = None) -> str:
        sent.append((words, body))
        return json.dumps(pages)

    monkeypatch.setattr(TELL, "gh", gh)
    path = tmp_path / "comment.md"
    path.write_text(TELL.MARK + "\nnew")
    words = ["--pull", "7", "--comment", str(path), "--repository", "o/r"]
    assert TELL.main(words) == 0
    assert sent[-1][0][2:4] == ("POST", "repos/o/r/issues/7/comments")
    pages[0].append(ours)
    assert TELL.main(words) == 0
    assert sent[-1][0][2:4] == ("PATCH", "repos/o/r/issues/comments/2")
    path.write_text("not ours")
    assert TELL.main(words) == 1


# --------------------------------------------------------------------------- the workflows


def steps(path: Path) -> list[dict]:
    jobs = yaml.safe_load(path.read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_hold_to_the_rules(path: Path) -> None:
    text = path.read_text()
    flow = yaml.safe_load(text)
    assert "pull_request_target" not in re.sub(r"#.*", "", text)
    assert "secrets." not in text
    assert "permissions" in flow
    for step in steps(path):
        assert "${{" not in step.get("run", ""), "untrusted text must come by env, not by expansion"
        if "uses" in step:
            assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step["uses"])
        if step.get("uses", "").startswith("actions/checkout"):
            assert step["with"]["persist-credentials"] is False


def test_only_the_trusted_job_may_write_and_it_runs_no_submission() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/measure.yml").read_text())["jobs"]
    assert jobs["gpu"]["permissions"] == {"contents": "read"}
    assert "gpu" in jobs["gpu"]["runs-on"]
    assert jobs["board"]["permissions"]["pull-requests"] == "write"
    told = " ".join(step.get("run", "") for step in jobs["board"]["steps"])
    assert "--submission" in told
    assert "run.py --submission" not in told
    assert "cpu_checks" not in told


def test_the_walls_of_a_measurement_are_named() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/measure.yml").read_text())["jobs"]
    told = " ".join(step.get("run", "") for step in jobs["gpu"]["steps"])
    assert re.search(r"run\.py --submission .* --sandbox [1-9] ", told)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_the_guard_is_always_told_whose_pull_request_it_is(path: Path) -> None:
    for step in steps(path):
        if re.search(r"path_guard\.py|stage\.py", step.get("run", "")):
            assert '--author "$AUTHOR"' in step["run"]
            assert step["env"]["AUTHOR"] in (
                "${{ github.event.pull_request.user.login }}",
                "${{ needs.who.outputs.author }}",
            )


def test_the_guard_compares_with_main_as_it_is() -> None:
    """With the base of the event, left behind, another's folder that the head held was one's own."""
    text = (ROOT / ".github/workflows/submission.yml").read_text()
    assert "base.sha" not in text
    assert text.count("ref: main") == 2
    assert '--base "$(git rev-parse HEAD)"' in text


def test_every_script_a_workflow_names_is_there() -> None:
    for path in WORKFLOWS:
        for name in re.findall(r"\.github/scripts/(\w+\.py)", path.read_text()):
            assert (SCRIPTS / name).is_file()


@pytest.mark.skipif(not shutil.which("actionlint"), reason="no actionlint on the PATH")
def test_actionlint_has_nothing_to_say() -> None:
    told = subprocess.run(
        ["actionlint", *map(str, WORKFLOWS)], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout
