"""Where an output is wrong: found by the judge, told in words, drawn over head and row."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.board.render.text import error_map, head_names
from harness.schema.mismatch import Draw, Mismatch

torch = pytest.importorskip("torch")

from harness.judge.inputs import Inputs  # noqa: E402
from harness.judge.locate import digest, locate, located, picture  # noqa: E402
from harness.judge.numerics import Reference, error_of  # noqa: E402
from harness.problems.base import TensorSpec  # noqa: E402

LIMIT = 1e-2


def draw(shape: tuple[int, int, int, int], calls: int = 1) -> Draw:
    kwargs = {"causal": True, "sm_scale": None}
    return Draw(
        label="check/c/mine/1f", distribution="normal", shape=shape, kwargs=kwargs, calls=calls, whole=True
    )  # fmt: skip


def found(out: Any, right: Any, scaled: bool = False) -> Mismatch:
    told = locate(out, right, LIMIT, scaled)
    assert told
    shape = tuple(out.shape)
    return Mismatch(
        draw=draw(shape), output="o", call=0, wrong_calls=1, wrong_outputs=("o",), inputs_sha256="0" * 64, **told
    )  # fmt: skip


def right(*shape: int) -> Any:
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float32
    ).half()


def test_one_block_of_one_head() -> None:
    expected = right(2, 3, 128, 16)
    out = expected.clone()
    out[1, 2, 64:96] += 0.5
    out[1, 2, 70, 3] = expected[1, 2, 70, 3] + 3
    told = found(out, expected)
    assert (told.wrong, told.elements) == (32 * 16, expected.numel())
    assert told.index == (1, 2, 70, 3)
    assert told.expected == pytest.approx(float(expected[1, 2, 70, 3]))
    assert told.got == pytest.approx(float(out[1, 2, 70, 3]))
    assert told.words().startswith(
        "512 of 12288 elements wrong in rows 64 to 95 of head 2 of batch 1; worst o[1, 2, 70, 3]:"
    )
    assert told.picture == ("0" * 64,) * 5 + ("0" * 32 + "9" * 16 + "0" * 16,)
    lines = error_map(told)
    assert lines[0].strip() == "rows of o 0 to 127, 2 a mark; · right, ▁ to █ wrong"
    assert lines[6] == "b1 h2  " + "·" * 32 + "█" * 16 + "·" * 16


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ((slice(None), slice(None), slice(None)), "every row of every head;"),
        ((0, slice(1, 3), slice(None)), "every row of heads 1 to 2 of batch 0;"),
        ((slice(None), 1, 7), "row 7 of 2 of 8 heads, first head 1 of batch 0;"),
        ((0, 0, slice(0, 9, 2)), "5 rows from 0 to 8 of head 0 of batch 0;"),
        ((0, 0, 5, 3), "row 5 of head 0 of batch 0, column 3;"),
        ((0, 0, 5, slice(2, 4)), "row 5 of head 0 of batch 0, columns 2 to 3;"),
    ],
)
def test_the_place_in_words(wrong: Any, words: str) -> None:
    out = right(2, 4, 16, 8)
    out[wrong] += 1
    assert f" elements wrong in {words}" in found(out, right(2, 4, 16, 8)).words()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_all_that_counts(value: float) -> None:
    out = right(1, 2, 32, 8)
    out[0, 0, 3] += 1
    out[0, 1, 10:12, 5] = value
    told = found(out, right(1, 2, 32, 8))
    assert (told.wrong, told.index, told.rows) == (2, (0, 1, 10, 5), (10, 11))
    assert not math.isfinite(told.got)
    assert math.isfinite(told.expected)


def test_a_gradient_is_wrong_in_units_of_its_largest_value() -> None:
    expected = right(1, 1, 16, 8) * 100
    out = expected.clone()
    out[0, 0, 4, 4] += 1.0  # 1 of some 300
    out[0, 0, 5, 5] += 50
    assert found(out, expected, scaled=True).wrong == 1
    assert found(out, expected).wrong == 2


def test_a_place_is_told_without_torchs_symbolic_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """They import sympy: the first wrong output of a run waited for it for half a second."""
    monkeypatch.setitem(sys.modules, "torch.fx.experimental.symbolic_shapes", None)
    out = right(2, 3, 16, 8)
    out[1, 2, 15, 7] += 1.0
    assert found(out, right(2, 3, 16, 8)).index == (1, 2, 15, 7)


def test_nothing_wrong_has_no_place() -> None:
    assert locate(right(1, 1, 4, 8), right(1, 1, 4, 8), LIMIT, scaled=False) is None


@settings(deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 200), st.lists(st.tuples(st.integers(0, 39), st.integers(0, 199)), max_size=9)
)  # fmt: skip
def test_a_picture_shows_every_wrong_row_and_no_other(
    heads: int, seqlen: int, places: list[tuple[int, int]]
) -> None:
    of_rows = torch.zeros(heads, seqlen, dtype=torch.int64)
    for head, row in places:
        of_rows[head % heads, row % seqlen] = 8
    lines, high, wide = picture(of_rows, headdim=8)
    assert len(lines) <= 16
    assert all(1 <= len(line) <= 64 for line in lines)
    shown = {(r, c) for r, line in enumerate(lines) for c, mark in enumerate(line) if mark != "0"}
    assert shown == {(int(h) // high, int(s) // wide) for h, s in of_rows.nonzero().tolist()}
    if high == wide == 1:
        assert all(mark in "09" for line in lines for mark in line)


def test_a_wrong_lse_has_no_columns() -> None:
    shape = (1, 2, 16, 8)
    specs = (TensorSpec("o", shape, "fp16"), TensorSpec("lse", shape[:3], "fp32"))
    o, lse = right(*shape), right(*shape[:3]).float()
    answers = (Reference(o, o.float()), Reference(lse, lse))
    out = lse.clone()
    out[0, 1, 3] += 1
    inputs = Inputs(specs, specs, [(o,)], [answers], {}, LIMIT, draw=draw(shape))
    grades = [error_of(each, answer) for each, answer in zip((o, out), answers, strict=True)]
    told = located(inputs, grades, 1, out)
    assert told
    where = f"worst lse[0, 1, 3]: expected {float(lse[0, 1, 3]):.4g}"
    assert told.words().startswith(f"1 of 32 elements wrong in row 3 of head 1; {where}")
    assert told.got == float(out[0, 1, 3]) == float(lse[0, 1, 3]) + 1, "an lse is not worked on"


def test_of_three_gradients_the_farthest_is_told_and_the_others_named() -> None:
    shape = (1, 2, 16, 8)
    specs = tuple(TensorSpec(name, shape, "fp16") for name in ("dq", "dk", "dv"))
    references = [tuple(Reference(right(*shape), right(*shape).float()) for _ in specs)] * 2
    outs = [right(*shape) for _ in range(6)]
    outs[1][0, 1, 3] += 1  # dk of call 0
    outs[4][0, 1, 3] += 2  # dk of call 1
    outs[5][0, 0, 0] += 0.5  # dv of call 1
    inputs = Inputs(
        specs, specs, [(right(*shape),)] * 2, references, {}, LIMIT, draw=draw(shape, calls=2)
    )
    flat = [reference for call in references for reference in call]
    grades = [error_of(out, reference) for out, reference in zip(outs, flat, strict=True)]
    told = located(inputs, grades, 4, outs[4])
    assert told
    assert (told.output, told.call, told.wrong_calls) == ("dk", 1, 2)
    assert told.wrong_outputs == ("dk", "dv")
    assert told.words().endswith("2 of 2 calls wrong; also dv")
    assert told.inputs_sha256 == digest([right(*shape)])


def test_a_gradient_of_shared_heads_is_told_in_its_own_shape() -> None:
    """dk has fewer heads and more rows than q; without them `every head` and `every row` are wrong."""
    expected = right(2, 2, 96, 16)
    told = found(expected + 1, expected)
    drawn = draw((2, 8, 64, 16)).model_copy(update={"kv_heads": 2, "seqlen_k": 96})
    told = told.model_copy(update={"draw": drawn, "output": "dk"})
    assert told.shape == (2, 2, 96, 16)
    assert "wrong in every row of every head" in told.words()
    assert head_names(told) == ["b0 h0", "b0 h1", "b1 h0", "b1 h1"]
    assert error_map(told)[0].lstrip().startswith("rows of dk 0 to 95")
    assert told.model_copy(update={"output": "dq"}).shape == (2, 8, 64, 16)


def test_what_a_draw_does_not_set_is_not_written() -> None:
    plain = draw((1, 2, 3, 4))
    assert not {"kv_heads", "seqlen_k", "seqlens"} & set(plain.model_dump())
    packed = plain.model_copy(update={"kv_heads": 1, "seqlens": (2, 1)})
    assert Draw.model_validate(packed.model_dump()) == packed


def test_a_digest_is_of_the_bits() -> None:
    assert digest([torch.tensor([0.0])]) != digest([torch.tensor([-0.0])])
    assert digest([right(2, 3)]) == digest([right(2, 3).t().contiguous().t()])


@pytest.mark.parametrize(
    ("batch", "heads", "names"),
    [
        (1, 2, ["h0", "h1"]),
        (2, 1, ["b0 h0", "b1 h0"]),
        (1, 20, [*(f"h{n}…h{n + 1}" for n in range(0, 20, 2))]),
        (2, 9, [*(f"b{n // 9} h{n % 9}…h{n % 9 + 1}" for n in (0, 2, 4, 6)), "b0 h8…b1 h0",
                *(f"b1 h{n}…h{n + 1}" for n in (1, 3, 5, 7))]),
    ],
)  # fmt: skip
def test_the_lines_of_the_picture_are_heads(batch: int, heads: int, names: list[str]) -> None:
    expected = right(batch, heads, 4, 8)
    assert head_names(found(expected + 1, expected)) == names
