"""Where is what: what comes along with the harness, and what is the user's own.

    HOME     holds harness/, beside it baselines/, configs/, exported/ and submissions/:
             a checkout, or site-packages/attnboard where a wheel is installed
    root()   the user's folder, marked by the file `.attnboard`: submissions/, configs/, results/,
             leaderboard.md. In a checkout it is the checkout, unless another one is meant

A name is looked up under the root first, then under HOME; of a baseline the other way round.
"""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import harness
from harness.errors import UsageError

HOME = Path(harness.__file__).resolve().parent.parent
SUBMISSION_FILES = ("manifest.yaml", "submission.py")  # either makes a folder a submission
MARK = ".attnboard"
VARIABLE = "ATTNBOARD_ROOT"


def find(start: Path | None = None) -> Path | None:
    """The root, or None where there is none.

    It is what ATTNBOARD_ROOT or --root says, else the nearest marked folder at or above `start`
    (the current folder) that neither is nor lies in a submission, whose author would choose suite
    and baseline; else (a stray manifest lies above all) the nearest above the submission stood in,
    else the nearest, else the checkout. Raises UsageError where what is asked for is none.
    """
    if asked := os.environ.get(VARIABLE, ""):
        folder = Path(os.path.realpath(asked))  # Path.resolve raises at a link to itself
        if not is_project(folder):
            touch = f"touch {shlex.quote(str(folder / MARK))}"
            hint = touch if folder.is_dir() else "attnboard init NAME --project makes one"
            said = f"{VARIABLE} or --root: {asked} is no project, it has no file {MARK}"
            raise UsageError(said, hint)
        return folder
    here = (start or Path.cwd()).resolve()
    marked = [at for at in (here, *here.parents) if is_project(at) and not is_submission(at)]
    own = (at for at in marked if not any(map(is_submission, at.parents)))
    inside = next(filter(is_submission, (here, *here.parents)), here)
    above = (at for at in marked if at in inside.parents)
    return next(iter((*own, *above, *marked, *filter(is_project, (HOME,)))), None)


def root() -> Path:
    """The same; raises UsageError where there is none."""
    if (found := find()) is None:
        said = f"no project here: no file {MARK} in {Path.cwd()} or above it"
        raise UsageError(said, "attnboard init demo && cd demo, or --root DIR")
    return found


def base() -> Path:
    """The root, or HOME where there is none: what comes along can be named anywhere."""
    return find() or HOME


def is_project(folder: Path) -> bool:
    """Whether `folder` is marked as somebody's root."""
    return os.path.isfile(folder / MARK)  # which raises nothing


def is_submission(folder: Path) -> bool:
    """Whether `folder` is a submission by itself."""
    return any(os.path.exists(folder / file) for file in SUBMISSION_FILES)


def results(text: str) -> Path:
    """The folder of records that `--results` means: of the root where nothing is given."""
    return Path(text) if text else root() / "results"


def layers(folder: Path) -> tuple[Path, ...]:
    """Where a name of `folder` is looked up: there and, if it is a project's, in HOME's.

    A project adds baselines and hides none: a speed-up over `sdpa` is one over ours.
    """
    own = folder.resolve()
    built_in = HOME / own.name
    if own == built_in or not is_project(own.parent) or not built_in.is_dir():
        return (folder,)
    return (built_in, folder) if own.name == "baselines" else (folder, built_in)


def private(own: Path) -> tuple[Path, ...]:
    """What workers read nothing of but what they are given: the root `own`, and a checkout.

    An installation is not private: it lies among the packages that workers import.
    """
    return tuple(filter(is_project, dict.fromkeys((own, HOME))))


def chosen(words: Sequence[str]) -> list[str]:
    """`words` without --root DIR, which ATTNBOARD_ROOT says from now on, in children too."""
    left: list[str] = []
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        if flag != "--root":
            left.append(word)
            continue
        value = value if equals else next(rest, "")
        if not value:
            raise UsageError("--root names no folder", "--root DIR")
        os.environ[VARIABLE] = str(Path(value).absolute())
    return left
