"""benchmarks/hopper_checks_gpu.py on a CPU: a kernel that is right passes, one that is wrong once does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import hopper_checks_gpu as checks  # noqa: E402

SHAPE = (2, 3, 96, 64)


def right(q, k, v, causal=True, scale=None):
    return checks.attention(q, k, v, causal, q.shape[3] ** -0.5 if scale is None else scale).half()


class WrongOnce:
    """One element of one row is off in the call with number `at`."""

    def __init__(self, at, value):
        self.at, self.value, self.calls = at, value, 0

    def __call__(self, q, k, v, causal=True, scale=None):
        out = right(q, k, v, causal, scale)
        if self.calls == self.at:
            out[..., -1, -1, 5] += self.value
        self.calls += 1
        return out


def last(function, count=3):
    *_, known = checks.bursts(function, right, SHAPE, count, "cpu")
    return known


def test_right_outputs_are_counted():
    known = last(right)
    assert (known["wrong"], known["bursts"], known["outputs"]) == (0, 3, 3 * checks.CALLS)
    assert known["wrong_bursts"] == []
    assert known["float64"] < 1e-3


@pytest.mark.parametrize("value", [0.01, float("nan"), float("inf")])
@pytest.mark.parametrize(("at", "wrong"), [(checks.CALLS, checks.CALLS), (checks.CALLS + 2, 1)])
def test_one_wrong_element_is_found(at, wrong, value):
    """In the first call of a burst all its outputs count as wrong, in a later one that call alone."""
    known = last(WrongOnce(at, value))
    assert known["wrong_bursts"] == [1]
    assert known["wrong"] == wrong


def test_inputs_are_new_in_each_burst():
    seen = []

    def remember(q, k, v, causal=True):
        seen.append(q.sum().item())
        return right(q, k, v)

    last(remember, 4)
    assert len(set(seen)) == 4


def test_small_shapes_tell_what_is_wrong():
    told = []
    functions = {"good": right, "bad": WrongOnce(1, 40.0)}
    assert not checks.small(functions, lambda **message: told.append(message), [64], "cpu")
    wrong = [message for message in told if "small" in message]
    assert [(each["small"], each["case"]) for each in wrong] == [("bad", checks.SMALL[1][0])]
    assert checks.small({"good": right}, lambda **message: None, [64], "cpu")
