"""The Hopper kernels on a Hopper GPU: cuda_hopper's numbers, graphs and counters; the deterministic backward's bits.

The latter gives the same bits in 1,000 calls at each official shape, on every card that is here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.catalog.suites import load_suite
from harness.schema import Case

torch = pytest.importorskip("torch")
pytest.importorskip("cuda.bindings")
pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
LIMITS = {False: (1e-3, 2e-3), True: (5e-3, 1e-2)}  # the gate's: whole and worst row, fp16 and bf16
HEADDIMS = (64, 128, 256)


def loaded(name: str, folder: Path) -> Iterator[ModuleType]:
    """The module of a submission, compiling into `folder`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNBOARD_CACHE", str(folder))
        path = ROOT / "submissions" / name / "submission.py"
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def submission(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    yield from loaded("cuda_hopper", tmp_path_factory.mktemp("cubins"))


@pytest.fixture(scope="module")
def backward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    for module in loaded("cuda_hopper_backward_deterministic", tmp_path_factory.mktemp("cubins")):
        yield module.custom_attention_backward


def reference(q, k, v, causal: bool, scale: float):
    """float64 attention and log-sum-exp, one head at a time: [B, H, S, D], [B, H, S]."""
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float64, device=q.device)
    seqlen_q, seqlen_k, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    future = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool, device=q.device)
    future = future.triu(1 + seqlen_k - seqlen_q)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            logits = q[b, h].double() @ k[b, h // group].double().T * scale
            if causal:
                logits.masked_fill_(future, -math.inf)
            lse[b, h] = logits.logsumexp(-1)
            out[b, h] = logits.softmax(-1) @ v[b, h // group].double()
    return out, lse


def adversarial(kind: str, shape: tuple[int, int, int, int]):
    """q, k, v and the scale of one kind of input that a lazy softmax could trip over."""
    torch.manual_seed(7)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(3))
    seqlen, headdim = shape[2:]
    at = torch.arange(seqlen, device="cuda")[None, None, :, None] / seqlen
    scale = headdim**-0.5
    if kind == "logits x8":
        q = q * 8
    elif kind == "logits x30":
        q = q * 30
    elif kind == "rising":  # every tile beats the one before
        q, k = torch.ones_like(q), (at * 220 * headdim**-0.5 + 0 * k).half()
    elif kind == "rising past fp32":  # 2^x of some later tile overflows: the item is done again
        q, k = torch.full_like(q, 4), (at * 400 * headdim**-0.5 + 0 * k).half()
    elif kind == "falling":
        q, k = torch.ones_like(q), ((1 - at) * 300 * headdim**-0.5 + 0 * k).half()
    elif kind == "one huge key":
        q = torch.full_like(q, 8)
        k[:, :, seqlen // 5] = 600
    elif kind == "all equal":
        k = torch.ones_like(k)
    elif kind == "needle":
        k[:, :, 7] = q[:, :, -1] * 4
    elif kind == "first half far below":
        q, k = q.abs(), torch.where(at < 0.5, -6 * k.abs(), 6 * k.abs()).half()
    elif kind == "first half far above":
        q, k = q.abs(), torch.where(at < 0.5, 6 * k.abs(), -6 * k.abs()).half()
    elif kind == "v with an offset":
        v = v + 10
    elif kind.startswith("scale "):
        scale = float(kind.split()[1])
    return q, k, v, scale


def check(
    submission: ModuleType, kind: str, shape: tuple[int, int, int, int], causal: bool, bf16=False
):
    q, k, v, scale = adversarial(kind, shape)
    if bf16:
        q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
    got = submission.custom_attention_forward(q, k, v, causal, scale)
    close(got, reference(q, k, v, causal, scale)[0])


def close(got, want):
    limits = LIMITS[got.dtype == torch.bfloat16]
    assert torch.isfinite(got).all()
    error = got.double() - want
    rows = error.norm(dim=-1) / want.norm(dim=-1).clamp_min(1e-6)
    assert error.norm() / want.norm() < limits[0]
    assert rows.max() < limits[1]


def packing(q: object, k: object, longest: int) -> dict[str, object]:
    """The keywords of packed sequences."""
    return {
        "cu_seqlens_q": q, "cu_seqlens_k": k, "max_seqlen_q": longest, "max_seqlen_k": longest,
    }  # fmt: skip


KINDS = [
    "logits x8", "logits x30", "rising", "rising past fp32", "falling", "one huge key", "all equal",
    "needle", "first half far below", "first half far above", "v with an offset",
    "scale 1e-4", "scale -0.3", "scale 0", "scale 0.777",
]  # fmt: skip


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("kind", KINDS)
def test_adversarial_rows(
    submission: ModuleType, kind: str, headdim: int, causal: bool, bf16: bool
) -> None:
    check(submission, kind, (1, 3, 1500, headdim), causal, bf16)


LAYOUTS = {
    "dense": lambda t: t,
    "rows outside": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    "packed": lambda t: torch.stack([t, t], 2).permute(0, 3, 2, 1, 4).contiguous()[:, :, 1].permute(0, 2, 1, 3),
    "misaligned rows": lambda t: torch.nn.functional.pad(t, (0, 4))[..., :-4],  # copied
}  # fmt: skip
WORKLOADS = [  # batch, heads, kv_heads, seqlen_q, seqlen_k
    (1, 8, 8, 700, 700), (2, 8, 2, 700, 700), (3, 6, 1, 333, 1500), (2, 32, 8, 1, 777),
    (1, 5, 5, 64, 65), (2, 10, 2, 193, 4097), (1, 64, 8, 1024, 2048), (2, 3, 3, 2000, 2500),
]  # fmt: skip


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_grouped_heads_lengths_and_strides(
    submission: ModuleType, layout: str, headdim: int, causal: bool, bf16: bool
) -> None:
    torch.manual_seed(headdim)
    for batch, heads, kv_heads, seqlen_q, seqlen_k in WORKLOADS:
        shapes = (batch, heads, seqlen_q, headdim), (batch, kv_heads, seqlen_k, headdim)
        q, k, v = (torch.randn(shapes[i], device="cuda") for i in (0, 1, 1))
        q, k, v = (LAYOUTS[layout](t.bfloat16() if bf16 else t.half()) for t in (q, k, v))
        got, lse = submission.custom_attention_forward(q, k, v, causal, None, return_lse=True)
        want, want_lse = reference(q, k, v, causal, headdim**-0.5)
        close(got, want)
        assert (lse - want_lse).abs().max() < 1e-5 * want_lse.abs().max().clamp_min(1)
        assert got.shape == q.shape
        if layout == "rows outside":
            assert got.stride() == q.stride()


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("headdim", HEADDIMS)
def test_packed_sequences(submission: ModuleType, headdim: int, causal: bool, bf16: bool) -> None:
    torch.manual_seed(headdim)
    for lengths, more in (
        ([974, 753, 298, 1, 63, 64, 65, 500], 0), ([1], 0), ([130], 200), ([3] * 200, 0),
        ([700, 20, 128, 256, 192, 1000], 77),
    ):  # fmt: skip
        of_q, of_k = lengths, [length + more for length in lengths]
        begins = [torch.tensor([0, *of]).cumsum(0).int().cuda() for of in (of_q, of_k)]
        q, k, v = (
            torch.randn(1, heads, sum(of), headdim, device="cuda").to(
                torch.bfloat16 if bf16 else torch.float16
            )
            for heads, of in ((6, of_q), (2, of_k), (2, of_k))
        )
        got, lse = submission.custom_attention_forward(
            q, k, v, causal, return_lse=True, **packing(*begins, longest=max(of_q))
        )
        row = key = 0
        for rows, keys in zip(of_q, of_k, strict=True):
            at, of = slice(row, row + rows), slice(key, key + keys)
            one = q[:, :, at], k[:, :, of], v[:, :, of]
            want, want_lse = reference(*one, causal, headdim**-0.5)
            close(got[:, :, at], want)
            assert (lse[:, :, at] - want_lse).abs().max() < 1e-4
            row, key = row + rows, key + keys


def test_packed_sequences_of_other_lengths_at_the_same_address(submission: ModuleType) -> None:
    """The lengths are read anew in each call, also of a captured one."""
    q = torch.randn(1, 4, 900, 128, device="cuda").half()
    begins = torch.tensor([0, 300, 900], dtype=torch.int32, device="cuda")
    sequences = packing(begins, begins, longest=900)
    submission.custom_attention_forward(q, q, q, **sequences)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = submission.custom_attention_forward(q, q, q, **sequences)
    for second in (1, 450, 899):
        begins[1] = second
        graph.replay()
        eager = submission.custom_attention_forward(q, q, q, **sequences)
        for at in (slice(0, second), slice(second, 900)):
            one = q[:, :, at]
            want = reference(one, one, one, True, 128**-0.5)[0]
            close(eager[:, :, at], want)
            close(replayed[:, :, at], want)


def test_fewer_keys_than_queries(submission: ModuleType) -> None:
    for headdim in HEADDIMS:
        q, k = (torch.randn(2, 3, n, headdim, device="cuda").half() for n in (900, 77))
        got = submission.custom_attention_forward(q, k, k, causal=False)
        close(got, reference(q, k, k, False, headdim**-0.5)[0])
        with pytest.raises(ValueError, match="900 queries over 77 keys, causal"):
            submission.custom_attention_forward(q, k, k, causal=True)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("seqlen", [1, 17, 64, 65, 127, 129, 193, 257, 1000])
def test_lengths_off_the_tile(
    submission: ModuleType, seqlen: int, headdim: int, causal: bool
) -> None:
    check(submission, "normal", (1, 5, seqlen, headdim), causal)


@pytest.mark.parametrize("headdim", HEADDIMS)
def test_the_work_counter_survives_many_launches(submission: ModuleType, headdim: int) -> None:
    q, k, v, scale = adversarial("rising past fp32", (2, 40, 640, headdim))
    first = submission.custom_attention_forward(q, k, v, True, scale)
    for _ in range(50):
        again = submission.custom_attention_forward(q, k, v, True, scale)
    assert torch.equal(first, again)


@pytest.mark.parametrize("headdim", HEADDIMS)
def test_one_graph_on_another_stream_beside_eager_launches(
    submission: ModuleType, headdim: int
) -> None:
    q, k, v, scale = adversarial("normal", (2, 40, 640, headdim))
    attend = submission.custom_attention_forward
    want = attend(q, k, v, True, scale).clone()
    capturing, replaying = torch.cuda.Stream(), torch.cuda.Stream()
    capturing.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=capturing):
        replayed = [attend(q, k, v, True, scale) for _ in range(8)]
    torch.cuda.synchronize()
    for _ in range(25):
        for out in replayed:
            out.fill_(math.nan)
        torch.cuda.synchronize()
        with torch.cuda.stream(replaying):
            graph.replay()
        with torch.cuda.stream(capturing):
            eager = [attend(q, k, v, True, scale) for _ in range(8)]
        torch.cuda.synchronize()
        assert all(torch.equal(out, want) for out in (*replayed, *eager))


def test_two_graphs_at_once(submission: ModuleType) -> None:
    q, k, v, scale = adversarial("normal", (2, 40, 640, 64))
    attend = submission.custom_attention_forward
    want = attend(q, k, v, True, scale).clone()
    torch.cuda.synchronize()
    graphs, outputs, capturing = [torch.cuda.CUDAGraph() for _ in range(2)], [], torch.cuda.Stream()
    for graph in graphs:
        with torch.cuda.graph(graph, stream=capturing):
            outputs += [attend(q, k, v, True, scale) for _ in range(8)]
    streams = [torch.cuda.Stream() for _ in graphs]
    for _ in range(25):
        for out in outputs:
            out.fill_(math.nan)
        torch.cuda.synchronize()
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(out, want) for out in outputs)


def test_a_shorter_k_at_the_same_address_is_refused(submission: ModuleType) -> None:
    q, k, v = (torch.randn(1, 1, 256, 64, device="cuda").half() for _ in range(3))
    submission.custom_attention_forward(q, k, v)
    with pytest.raises(ValueError, match=r"v is \(1, 1, 256, 64\)"):
        submission.custom_attention_forward(q, k[:, :, :128], v)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("headdim", HEADDIMS)
def test_lse_is_the_natural_logarithm_of_each_row_s_sum(
    submission: ModuleType, headdim: int, causal: bool
) -> None:
    for kind in ("normal", "logits x8", "rising past fp32", "scale -0.3", "scale 0"):
        q, k, v, scale = adversarial(kind, (2, 3, 700, headdim))
        o, lse = submission.custom_attention_forward(q, k, v, causal, scale, return_lse=True)
        want = reference(q, k, v, causal, scale)[1]
        assert ((lse - want).abs() / want.abs().clamp_min(1)).max() < 1e-5, kind
        assert torch.equal(o, submission.custom_attention_forward(q, k, v, causal, scale)), kind


def test_an_output_that_is_given_has_the_result(submission: ModuleType) -> None:
    attend = submission.custom_attention_forward
    for shape in ((2, 3, 300, 64), (2, 300, 3, 64)):
        q, k, v, scale = adversarial("normal", shape)
        if shape[1] == 300:
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        want = attend(q, k, v, True, scale)
        for again in range(2):  # the first makes a plan, the second finds it
            for out in (torch.empty_like(q), torch.empty(q.shape, dtype=q.dtype, device=q.device)):
                out.fill_(math.nan)
                assert attend(q, k, v, True, scale, out=out) is out
                assert torch.equal(out, want), (shape, again, out.stride())
        o, lse = attend(q, k, v, True, scale, return_lse=True, out=out)
        assert o is out
        assert lse.shape == q.shape[:3]


def test_a_first_call_while_a_graph_is_captured(submission: ModuleType) -> None:
    q, k, v, scale = adversarial("normal", (1, 2, 300, 64))
    submission._load.cache_clear()
    submission._plans.clear()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = submission.custom_attention_forward(q, k, v, True, scale)
    graph.replay()
    assert torch.equal(out, submission.custom_attention_forward(q, k, v, True, scale))


# ----------------------------------------------------------- the deterministic backward

CASES = load_suite("fa3_bwd", ROOT / "configs").cases
CALLS, NOISE_FLOATS = 1000, 16 << 20


def digest(backward: Any, case: Case, card: int) -> str:
    """Of the three gradients, after CALLS calls that all gave them; noise in the L2 between some."""
    device = torch.device("cuda", card)
    generator = torch.Generator(device).manual_seed(7)
    shape = (case.batch, case.heads, case.seqlen, case.headdim)
    q, k, v, do = (torch.randn(shape, device=device, generator=generator).half() for _ in range(4))
    forward = torch.ops.aten._scaled_dot_product_flash_attention
    o, lse = (x.contiguous() for x in forward(q, k, v, 0.0, case.causal, False)[:2])
    first = [x.view(torch.int16).clone() for x in backward(q, k, v, o, lse, do, case.causal)]
    noise = torch.empty(NOISE_FLOATS, device=device)
    others = torch.zeros(3, dtype=torch.int64, device=device)
    for call in range(CALLS):
        if call % 3 == 0:
            noise.fill_(call)
        found = backward(q, k, v, o, lse, do, case.causal)
        for i, (mine, x) in enumerate(zip(first, found, strict=True)):
            others[i] += (x.view(torch.int16) != mine).any()
    assert others.tolist() == [0, 0, 0], f"calls with other bits in dq, dk, dv on card {card}"
    assert all(bool(x.any()) for x in first), "a gradient of zeros repeats itself, too"
    return hashlib.sha256(b"".join(x.cpu().numpy().tobytes() for x in first)).hexdigest()[:16]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_call_on_every_card_gives_the_same_bits(backward: Any, case: Case) -> None:
    digests = {card: digest(backward, case, card) for card in range(torch.cuda.device_count())}
    print(case.name, digests)
    assert len(set(digests.values())) == 1, digests
