"""Two kernels agree in part of the bits, a kernel and itself in all; libraries answer each problem's calls."""

from __future__ import annotations

import importlib

import pytest

torch = pytest.importorskip("torch")

from harness.board.kernel_class import SAME_BITS  # noqa: E402
from harness.judge.numerics import likeness  # noqa: E402
from harness.problems import PROBLEMS  # noqa: E402
from harness.schema import Case  # noqa: E402

CASE = Case(name="c", batch=1, heads=2, seqlen=256, headdim=64)


def test_the_share_is_of_elements_in_any_layout():
    mine = torch.arange(8, dtype=torch.float16).view(2, 4)
    theirs = mine.clone()
    theirs[0, :2] += 1
    (found,) = likeness([mine.t().contiguous().t()], [("lib", [theirs])]).values()
    assert found == 0.75


def test_of_three_results_the_middle_one_counts():
    ones, zeros = torch.ones(4, dtype=torch.float16), torch.zeros(4, dtype=torch.float16)
    assert likeness([ones] * 3, [("lib", [ones, zeros, ones])]) == {"lib": 1.0}
    assert likeness([ones] * 3, [("lib", [ones, zeros, zeros])]) == {"lib": 0.0}


@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_a_library_is_known_again_and_the_definition_is_not_it(name):
    problem = PROBLEMS[name]
    tensors = importlib.import_module(problem.tensors_module)
    kwargs = problem.kwargs(CASE)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        inputs = tensors.make_inputs(CASE, "normal", generator, torch.device("cpu"), kwargs)
        found = dict(tensors.libraries(inputs, kwargs))
        assert "flash" in found
        own = [result.to(torch.float16) for result in tensors.exact(inputs, kwargs)]
        for library, results in found.items():
            assert len(results) == len(problem.outputs(CASE))
            again = dict(tensors.libraries(inputs, kwargs))
            assert likeness(results, [(library, again[library])])[library] >= SAME_BITS
        assert max(likeness(own, found.items()).values()) < SAME_BITS
