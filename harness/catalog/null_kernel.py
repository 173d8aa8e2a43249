"""The null kernel of a problem: returns memory nobody computed. It measures the clocks alone.

Written for the problem's own signature, so that a new problem brings nothing: every result takes
its shape and element type from the first argument that has them in every case.
"""

from pathlib import Path

from harness.catalog.entrants import load_entrant
from harness.problems import Problem
from harness.schema import Case, Claims, Dtype, Entrant, Kind, Manifest

NAME = "null"
SOURCE = '''"""The null kernel of {problem}."""

import torch


def {function}({parameters}, **_):
    """Return unwritten memory."""
    results = tuple(torch.empty_like(like) for like in ({likes},))
    return results if len(results) > 1 else results[0]
'''


def null_entrant(problem: Problem, cases: tuple[Case, ...], folder: Path) -> Entrant:
    """Write the null kernel of `problem` into `folder` and load it like any entrant."""
    folder.mkdir(parents=True)
    likes = [_like(problem, cases, number) for number in range(len(problem.outputs(cases[0])))]
    source = SOURCE.format(
        problem=problem.name,
        function=problem.function,
        parameters=", ".join(problem.parameters),
        likes=", ".join(likes),
    )
    (folder / "submission.py").write_text(source, encoding="utf-8")
    headdims = tuple(sorted({case.headdim for case in cases}))
    claims = Claims(headdims=headdims, dtypes=tuple(Dtype), gqa=True, seqlens="any", packed=True)
    manifest = Manifest(name=NAME, problem=problem.name, claims=claims)
    (folder / "manifest.yaml").write_text(manifest.model_dump_json(), encoding="utf-8")
    return load_entrant(folder, Kind.BASELINE, problem)


def _like(problem: Problem, cases: tuple[Case, ...], number: int) -> str:
    """The argument that has shape and element type of result `number` in all cases."""

    def alike(case: Case) -> list[str]:
        out = problem.outputs(case)[number]
        return [
            spec.name
            for spec in problem.inputs(case)
            if (spec.shape, spec.dtype) == (out.shape, out.dtype)
        ]

    return next(name for name in alike(cases[0]) if all(name in alike(case) for case in cases))
