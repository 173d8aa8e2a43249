"""The problems that can be measured. A problem is two files: arithmetic here, tensors beside it.

`<name>.py` knows shapes, FLOPs, bytes and limits and imports no torch; `<name>_tensors.py` makes
inputs and references and is imported by the judge (and, for inputs of its own, by the builder)
alone.
"""

from harness.errors import UsageError, did_you_mean
from harness.problems import attention_backward, attention_forward
from harness.problems.base import Problem

_ALL: tuple[Problem, ...] = (attention_forward.PROBLEM, attention_backward.PROBLEM)
PROBLEMS: dict[str, Problem] = {problem.name: problem for problem in _ALL}


def get_problem(name: str) -> Problem:
    """Return the problem called `name`; raise UsageError with the nearest one otherwise."""
    if name not in PROBLEMS:
        hint = did_you_mean(name, PROBLEMS) or f"known: {', '.join(PROBLEMS)}"
        raise UsageError(f"problem '{name}': unknown", hint)
    return PROBLEMS[name]


__all__ = ["PROBLEMS", "Problem", "get_problem"]
