"""What was asked for, resolved: a suite, a machine, entrants read and hashed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.catalog.entrants import ALL, find_entrants, gather, known_names, load_entrant, place_of
from harness.catalog.null_kernel import NAME as NULL
from harness.errors import UsageError, did_you_mean
from harness.measure.stopping import FIXED, StoppingRule
from harness.problems import get_problem
from harness.process.project import HOME, private
from harness.process.sandbox.readable import DenyList, reached, shut
from harness.process.text import SURROGATE, shown
from harness.schema import Entrant, Kind, Machine, Suite


@dataclass(frozen=True)
class Request:
    """What was asked for, resolved: nothing below looks at a flag again."""

    suite: Suite
    machine: Machine
    entrants: tuple[Entrant, ...]
    baseline: str  # the headline: what a speed-up is a multiple of
    root: Path = HOME
    cache: Path = Path.home() / ".cache" / "attnboard"
    sandbox: int = 0
    rule: StoppingRule = FIXED  # when to stop measuring whom
    fail_fast: bool = False  # end at the first failure of a submission
    only_check: bool = False  # time nobody
    cases: tuple[str, ...] = ()  # only these of the suite, on the same board; all if empty
    refused: tuple[str, ...] = ()  # why somebody who came with others is left out
    trusted: tuple[Entrant, ...] = ()  # headline and control, as far as nobody asked for them
    entered: tuple[Path, ...] = ()  # submissions of the whole, shut in every part of it as well
    here: Path | None = None  # the current folder, where the whole keeps it shut

    @property
    def asked(self) -> Suite:
        """The suite with the cases to run; what a record says it belongs to is the whole one."""
        chosen = tuple(c for c in self.suite.cases if not self.cases or c.name in self.cases)
        return self.suite.model_copy(update={"cases": chosen})

    @property
    def shut(self) -> DenyList:
        """What no import path opens: project, cache, submissions but those that come along."""
        submitted = (e for e in self.entrants if e.kind is Kind.SUBMISSION)
        own = (e.place for e in submitted if not e.folder.is_relative_to(HOME))
        deny = shut(*private(self.root), self.cache, entered=(*self.entered, *own))
        return replace(deny, here=self.here or deny.here)

    def whole(self) -> "Request":
        """The same; what is made of it keeps shut what lies near an import path or a compiler."""
        deny = self.shut
        near = reached(replace(deny, entered=(), others=False), deny.entered)
        here = deny.here if deny.here and not SURROGATE.search(str(deny.here)) else None
        return replace(self, entered=near, here=here)  # one that is not UTF-8 is never opened

    @property
    def control(self) -> str:
        """The trusted baseline of every block: the headline, or the suite's if that is judged."""
        judged = {e.name for e in self.entrants if e.kind is Kind.SUBMISSION}
        return self.suite.against if self.baseline in judged else self.baseline

    def with_trusted(self) -> "Request":
        """The same once headline and control are read that are not among the entrants."""
        lacking = {self.baseline, self.control} - {entrant.name for entrant in self.entrants}
        folder, problem = self.root / "baselines", get_problem(self.suite.problem)
        places = (place_of_baseline(name, folder) for name in sorted(lacking))
        found = (load_entrant(place, Kind.BASELINE, problem, folder) for place in places)
        return replace(self, trusted=tuple(found)).whole()

    def without(self, entrant: str, cases: Sequence[str]) -> "Request":
        """The same for everybody but `entrant`, on `cases` only."""
        others = tuple(each for each in self.entrants if each.name != entrant)
        return replace(self, entrants=others, cases=tuple(cases))


def place_of_baseline(name: str, folder: Path) -> Path:
    """Where it lies below `folder` or comes along; UsageError for any other place, also a path."""
    if not (place := place_of(name, folder)):
        hint = did_you_mean(Path(name).name, known_names(folder)) or "run.py list baselines"
        raise UsageError(f"--against {shown(name)}: no name of a baseline", hint)
    return place


def is_reserved(name: str, root: Path) -> bool:
    """Of no submission: a baseline, however it lies there, is what others are compared with."""
    return name in (NULL, ALL) or place_of(name, root / "baselines") is not None


def resolve(
    names: Sequence[str],
    baselines: Sequence[str],
    suite: Suite,
    machine: Machine,
    baseline: str,
    root: Path,
    sandbox: int,
) -> Request:
    """Names → a Request at that level; raises UsageError on a name that two entrants share."""
    problem = get_problem(suite.problem)
    place_of_baseline(suite.against, root / "baselines")  # it is nobody's who bears its name
    folder = root / "submissions"
    rivals = find_entrants(baselines, root / "baselines", Kind.BASELINE, problem)
    named = {each.name for each in rivals}  # by their paths, too

    def taken(name: str) -> bool:
        return name in named or is_reserved(name, root)

    submissions, refused = gather(names, folder, Kind.SUBMISSION, problem, taken)
    entrants = (*submissions, *rivals)
    seen: dict[str, Path] = {}
    for each in entrants:
        if other := seen.get(each.name):
            said = f"two entrants are called '{each.name}': {other} and {each.entry_path}"
            raise UsageError(shown(said), "rename one of them, or name only one")
        seen[each.name] = each.entry_path
    return Request(
        suite=suite,
        machine=machine,
        entrants=entrants,
        baseline=baseline,
        root=root,
        sandbox=sandbox,
        refused=tuple(map(str, refused)),
    ).with_trusted()
