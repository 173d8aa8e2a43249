"""384 odd problems for each forward champion, against float64: lengths, heads, scales, outliers, ramps, strides, NaN."""

from __future__ import annotations

import importlib.util
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")

SUBMISSIONS = Path(__file__).resolve().parents[2] / "submissions"
CHAMPIONS = ("cuda_hopper", "gluon_champion", "triton_champion")
HEADDIMS = (64, 128, 256)
COUNT = 384
WHOLE, ROW = (
    1e-3,
    3e-3,
)  # the gate's, fp16; of a row half as much again, where outliers nearly cancel

#: How q, k and v lie: each makes a view [batch, heads, seqlen, headdim] of the same numbers.
LAYOUTS: dict[str, Callable] = {
    "dense": lambda t: t,
    "rows outside": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    "every second row": lambda t: torch.stack([t, t], 3).flatten(2, 3)[:, :, ::2],
    "columns of a wider row": lambda t: torch.nn.functional.pad(t, (8, 8))[..., 8:-8],
    "columns at an odd byte": lambda t: torch.nn.functional.pad(t, (1, 0))[..., 1:],
    "batch outside heads": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
}


class Odd(NamedTuple):
    """One problem."""

    number: int
    headdim: int
    batch: int
    heads: int
    seqlen: int
    causal: bool
    kind: str
    layout: str
    scale: float | None


def draw(number: int) -> Odd:
    """Problem `number` of COUNT, the same each time."""
    dice = random.Random(number)
    seqlen = dice.randint(*dice.choice([(1, 130), (1, 130), (131, 1100), (1101, 4224)]))
    scale = dice.choice([None, None, None, 1e-4, 0.0, 0.777, 2.0])
    odd = Odd(
        number, HEADDIMS[number % 3], dice.randint(1, 3), dice.choice([1, 2, 3, 5, 7]), seqlen,
        dice.random() < 0.6, dice.choice(list(KINDS)), dice.choice(list(LAYOUTS)), scale,
    )  # fmt: skip
    # what 0 * inf is, the champions do not agree on
    return odd._replace(scale=None) if odd.kind == "inf in q" and scale == 0 else odd


def ramp(q, k, v, up: float):
    at = torch.arange(k.shape[2], device=k.device)[:, None] / k.shape[2]
    return torch.full_like(q, 4), (at * up * k.shape[3] ** -0.5 + 0 * k).half(), v


def outliers(q, k, v):
    for x in (q, k, v):
        x[..., :: max(1, x.shape[3] // 3)] *= 30
    return q, k, v


def spike(q, k, v):
    k[:, :, k.shape[2] // 2] = q[:, :, -1] * 6
    return q, k, v


def one_key(q, k, v):  # all weight on it, near the largest fp16
    k[:, :, 0], q[...] = 40, q.abs() + 1
    v[:, :, 0] = 6e4
    return q, k, v


def not_a_number(q, k, v):
    k[:, :, k.shape[2] * 2 // 3, 3] = torch.nan
    return q, k, v


def infinite(q, k, v):
    q[:, :, q.shape[2] // 3, 5] = torch.inf
    return q, k, v


KINDS: dict[str, Callable] = {
    "normal": lambda q, k, v: (q, k, v),
    "logits x8": lambda q, k, v: (q * 8, k, v),
    "equal": lambda q, k, v: (q, torch.ones_like(k), v),
    "offset": lambda q, k, v: (q, k, v + 10),
    "small": lambda q, k, v: (q / 64, k / 64, v / 1024),
    "rising": lambda q, k, v: ramp(q, k, v, 40.0),
    "falling": lambda q, k, v: ramp(q, k, v, -40.0),
    "rising past fp32": lambda q, k, v: ramp(q, k, v, 400.0),
    "outliers": outliers,
    "spike": spike,
    "one key": one_key,
    "NaN in k": not_a_number,
    "inf in q": infinite,
}


def test_the_problems_are_many_and_differ() -> None:
    found = [draw(number) for number in range(COUNT)]
    assert len({odd[1:] for odd in found}) == COUNT
    assert {odd.kind for odd in found} == set(KINDS)
    assert {odd.layout for odd in found} == set(LAYOUTS)
    assert min(odd.seqlen for odd in found) == 1
    assert max(odd.seqlen for odd in found) > 4000


def test_every_layout_is_a_view_of_the_same_numbers() -> None:
    x = torch.randn(2, 3, 5, 8)
    for name, lay in LAYOUTS.items():
        assert torch.equal(lay(x), x), name
        assert name == "dense" or not lay(x).is_contiguous()


def test_the_bound_tells_a_wrong_row() -> None:
    want = torch.randn(1, 2, 50, 64, dtype=torch.float64)
    assert wrong(want.half(), want) == ""
    got = want.half()
    got[0, 1, 7] *= 1.01
    assert "worst row" in wrong(got, want)
    got[0, 1, 7, 3] = torch.nan
    assert "NaN or inf" in wrong(got, want)


def wrong(got, want) -> str:
    """What is wrong with an output, or an empty string. A row holds NaN exactly where float64's does.

    What rounding the exact output to fp16 costs, much where it is tiny, is nobody's fault.
    """
    finite = want.isfinite().all(-1)
    if not torch.equal(got.isfinite().all(-1), finite):
        return f"NaN or inf in other rows: {(got.isfinite().all(-1) != finite).sum()}"
    got, want = got[finite].double(), want[finite]
    if not len(want):
        return ""
    whole, row = sizes(got - want, want)
    least_whole, least_row = sizes(want.half().double() - want, want)
    right = whole < WHOLE + least_whole and (row < ROW + least_row).all()
    return "" if right else f"whole {whole:.1e}, worst row {row.max():.1e}"


def sizes(error, want):
    """Relative L2 of the whole and of each row."""
    whole = error.norm() / want.norm().clamp_min(1e-9)
    return whole.item(), error.norm(dim=-1) / want.norm(dim=-1).clamp_min(1e-6)


@pytest.fixture(scope="module", params=CHAMPIONS)
def attend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable:
    """custom_attention_forward of a champion."""
    folder = SUBMISSIONS / request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNBOARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.syspath_prepend(str(folder))
        for name in ("attention_kernel", "schedule", "submission"):
            patch.delitem(sys.modules, name, raising=False)
        spec = importlib.util.spec_from_file_location("submission", folder / "submission.py")
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "submission", module)
        spec.loader.exec_module(module)
        yield module.custom_attention_forward


def exact(q, k, v, causal: bool, scale: float):
    """float64, one batch at a time; what a row does not see does not touch it."""
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    future = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
    for b in range(q.shape[0]):
        logits = q[b].double() @ k[b].double().mT * scale
        if causal:
            logits.masked_fill_(future, -torch.inf)
        out[b] = logits.softmax(-1) @ v[b].double()
    return out


@pytest.mark.gpu
@pytest.mark.parametrize("headdim", HEADDIMS)
def test_odd_problems_against_float64(attend: Callable, headdim: int) -> None:
    failed = []
    for odd in filter(lambda odd: odd.headdim == headdim, map(draw, range(COUNT))):
        torch.manual_seed(odd.number)
        shape = (odd.batch, odd.heads, odd.seqlen, odd.headdim)
        drawn = (torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(3))
        q, k, v = (LAYOUTS[odd.layout](x) for x in KINDS[odd.kind](*drawn))
        scale = headdim**-0.5 if odd.scale is None else odd.scale
        said = wrong(attend(q, k, v, odd.causal, odd.scale), exact(q, k, v, odd.causal, scale))
        if said:
            failed.append(f"{odd}: {said}")
    assert not failed, f"{len(failed)} of {COUNT // 3}:\n" + "\n".join(failed)


@pytest.mark.gpu
def test_more_than_2_31_elements(attend: Callable) -> None:
    shape = (33, 128, 4096, 128)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(3))
    out = attend(q, k, v, True)
    for b, h in ((0, 0), (15, 127), (16, 0), (32, 127)):
        one = [x[b : b + 1, h : h + 1] for x in (q, k, v)]
        assert wrong(out[b : b + 1, h : h + 1], exact(*one, True, 128**-0.5)) == "", (b, h)


@pytest.mark.gpu
def test_six_threads_on_six_streams(attend: Callable) -> None:
    q, k, v = (torch.randn(2, 40, 640, 64, device="cuda").half() for _ in range(3))
    want = attend(q, k, v, True)
    torch.cuda.synchronize()
    unequal: list[int] = []

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            outs = [attend(q, k, v, True) for _ in range(200)]
            torch.cuda.current_stream().synchronize()
            unequal.extend(i for i, out in enumerate(outs) if not torch.equal(out, want))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert unequal == []
