"""Heads that share k and v, unequal lengths, packed sequences: arithmetic, references, probes, claims."""

from __future__ import annotations

import importlib.util
import math
from itertools import pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from harness.catalog.null_kernel import null_entrant  # noqa: E402
from harness.catalog.suites import load_suite  # noqa: E402
from harness.errors import SuiteError  # noqa: E402
from harness.judge.numerics import Reference, error_of  # noqa: E402
from harness.problems import PROBLEMS, get_problem  # noqa: E402
from harness.problems import attention_backward_tensors as backward_tensors  # noqa: E402
from harness.problems import attention_forward_tensors as forward_tensors  # noqa: E402
from harness.problems.base import by_name, keywords  # noqa: E402
from harness.schema import Case, Claims, Dtype  # noqa: E402

FORWARD, BACKWARD = get_problem("attention_forward"), get_problem("attention_backward")
CPU = torch.device("cpu")
USUAL = {"causal": True, "sm_scale": None}
ALL = Claims(headdims=(16, 64), dtypes=tuple(Dtype), gqa=True, seqlens="any", packed=True)
CASES = {
    "gqa": Case(name="c", batch=2, heads=6, kv_heads=2, seqlen=40, headdim=16),
    "mqa": Case(name="c", batch=2, heads=3, kv_heads=1, seqlen=33, headdim=16),
    "more keys": Case(name="c", batch=2, heads=2, seqlen=17, seqlen_k=50, headdim=16),
    "one query": Case(name="c", batch=1, heads=2, seqlen=1, seqlen_k=37, headdim=16),
    "fewer keys": Case(
        name="c", batch=1, heads=2, seqlen=50, seqlen_k=17, headdim=16, causal=False
    ),
    "both": Case(name="c", batch=2, heads=4, kv_heads=2, seqlen=31, seqlen_k=70, headdim=16),
    "packed": Case(name="c", batch=1, heads=2, seqlen=60, seqlens=(19, 1, 40), headdim=16),
    "packed gqa": Case(
        name="c",
        batch=1,
        heads=4,
        kv_heads=2,
        seqlen=64,
        seqlens=(2, 33, 1, 28),
        headdim=16,
        causal=False,
    ),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def visible(i, q, k, causal, edges):
    """The keys that query i sees."""
    if edges:
        first, last = next((a, b) for a, b in pairwise(edges) if a <= i < b)
        return range(first, i + 1 if causal else last)
    return range(min(k.shape[2], i + 1 + k.shape[2] - q.shape[2]) if causal else k.shape[2])


def defined(q, k, v, causal, scale, edges=()):
    """Attention row by row, a key at a time: nothing that the reference uses."""
    group = q.shape[1] // k.shape[1]
    out = torch.zeros_like(q)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                seen = visible(i, q, k, causal, edges)
                scores = torch.stack([(q[b, h, i] * k[b, h // group, j]).sum() for j in seen])
                weights = (scores * scale).softmax(0)
                out[b, h, i] = sum(
                    w * v[b, h // group, j] for w, j in zip(weights, seen, strict=True)
                )
    return out


def hidden_keys(q, k, causal, edges):
    """True where query i must not see key j."""
    hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    for i in range(q.shape[2]):
        hidden[i, list(visible(i, q, k, causal, edges))] = False
    return hidden


def drawn(tensors, case, kwargs, kind="normal"):
    generator = torch.Generator().manual_seed(4)
    return tensors.make_inputs(case, kind, generator, CPU, kwargs)


# ---------------------------------------------------------------------------------------- references


@each_case
@pytest.mark.parametrize("chunk", [1 << 27, 1 << 10])
def test_the_forward_reference_is_the_definition(case, chunk, monkeypatch):
    monkeypatch.setattr(forward_tensors, "CHUNK_ELEMENTS", chunk)
    kwargs = {"causal": case.causal, "sm_scale": 0.3}
    q, k, v, *edges = inputs = drawn(forward_tensors, case, kwargs)
    starts = edges[0].tolist() if edges else ()
    want = defined(q.double(), k.double(), v.double(), case.causal, 0.3, starts)
    (exact,) = forward_tensors.exact(inputs, kwargs)
    assert (exact - want).abs().max() < 1e-6
    (contract,) = forward_tensors.contract(inputs, kwargs)
    assert contract.shape == q.shape
    assert (contract - want).abs().max() < 2e-3


@each_case
@pytest.mark.parametrize("chunk", [1 << 27, 1 << 10])
def test_lse_is_the_logarithm_of_each_rows_sum(case, chunk, monkeypatch):
    monkeypatch.setattr(forward_tensors, "CHUNK_ELEMENTS", chunk)
    kwargs = {"causal": case.causal, "sm_scale": -0.3, "return_lse": True}
    q, k, _, *edges = inputs = drawn(forward_tensors, case, kwargs)
    scores = q.double() @ k.double().repeat_interleave(case.heads // k.shape[1], 1).mT * -0.3
    starts = edges[0].tolist() if edges else ()
    want = scores.masked_fill(hidden_keys(q, k, case.causal, starts), -math.inf).exp().sum(-1).log()
    for found in (forward_tensors.exact(inputs, kwargs), forward_tensors.contract(inputs, kwargs)):
        assert [tuple(x.shape) for x in found] == [s.shape for s in FORWARD.outputs(case, kwargs)]
        assert found[1].dtype is torch.float32
        torch.testing.assert_close(found[1].double(), want, rtol=1e-6, atol=1e-6)


def test_a_row_without_a_key_has_no_lse():
    q, k = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 3, 8)
    lse = forward_tensors.exact_lse((q, k, k), {"causal": True})
    assert (lse == -math.inf).tolist() == [[[True, True, False, False, False]] * 2]


@each_case
def test_who_gives_lse_is_asked_for_it_on_the_timed_shape_and_near_it(case):
    plain, more = (FORWARD.probes(case, ALL.model_copy(update={"lse": x})) for x in (False, True))
    assert more[: len(plain)] == plain
    asked = more[len(plain) :]
    assert all(probe.kwargs["return_lse"] is True for probe in asked)
    assert asked[0].case.question == case.question
    assert {p.kwargs["causal"] for p in asked} == {p.kwargs["causal"] for p in plain}
    assert {p.distribution for p in asked} == {"normal", "large_logits"}
    axes = {p.case.kv_heads for p in plain}
    assert {p.case.kv_heads for p in asked} == axes
    lse = ALL.model_copy(update={"lse": True})
    assert BACKWARD.probes(case, lse) == BACKWARD.probes(case, ALL)


@each_case
def test_some_rows_are_rows_of_the_whole(case, monkeypatch):
    monkeypatch.setattr(forward_tensors, "SAMPLED_ROWS", 20)
    kwargs = {"causal": case.causal, "sm_scale": None}
    for tensors in (forward_tensors, backward_tensors):
        inputs = drawn(tensors, case, kwargs)
        sampled = tensors.exact_rows(inputs, kwargs, torch.Generator().manual_seed(1))
        whole = tensors.exact(inputs, kwargs)
        assert len(sampled) == len(whole)
        for (rows, some), all_of_it in zip(sampled, whole, strict=True):
            torch.testing.assert_close(some, all_of_it.flatten(0, 2)[rows], rtol=1e-6, atol=1e-7)


@each_case
def test_the_backward_reference_is_the_derivative(case, monkeypatch):
    monkeypatch.setattr(
        backward_tensors, "CHUNK_ELEMENTS", 11 * case.kv_shape[2]
    )  # 11 rows a piece
    kwargs = {"causal": case.causal, "sm_scale": 0.3}
    inputs = drawn(backward_tensors, case, kwargs)
    q, k, v = (x.double().requires_grad_() for x in inputs[:3])
    group = case.heads // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).mT * 0.3
    starts = inputs[6].tolist() if case.seqlens else ()
    scores = scores.masked_fill(hidden_keys(q, k, case.causal, starts), -math.inf)
    out = scores.softmax(-1) @ v.repeat_interleave(group, 1)
    want = torch.autograd.grad(out, (q, k, v), inputs[5].double())
    bar = BACKWARD.limits(Dtype.FP16)
    pairs = zip(
        backward_tensors.exact(inputs, kwargs),
        backward_tensors.contract(inputs, kwargs),
        strict=True,
    )
    for (mine, library), theirs in zip(pairs, want, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-6)
        assert error_of(library, Reference(library, mine, scaled=True)).rel_l2 < bar.rel_l2
    assert (inputs[3].double() - out).abs().max() < 2e-3
    assert (inputs[4].double() - scores.logsumexp(-1)).abs().max() < 2e-3


@each_case
@pytest.mark.parametrize("dtype", Dtype)
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=lambda p: p.name)
def test_the_library_is_exact_on_every_probe(case, dtype, problem):
    """Both element types, all distributions: what refuses a wrong kernel lets an honest one through."""
    tensors = forward_tensors if problem is FORWARD else backward_tensors
    case, bar = case.model_copy(update={"dtype": dtype}), problem.limits(dtype)
    for probe in problem.probes(case, ALL):
        inputs = drawn(tensors, probe.case, probe.kwargs, probe.distribution)
        pairs = zip(
            tensors.contract(inputs, probe.kwargs), tensors.exact(inputs, probe.kwargs), strict=True
        )
        for contract, exact in pairs:
            found = error_of(contract, Reference(contract, exact, scaled=bar.scaled))
            assert found.rel_l2 < bar.rel_l2, probe.label
            assert found.worst_row < bar.worst_row, probe.label


# ---------------------------------------------------------------------------------------- arithmetic


@pytest.mark.parametrize(
    ("axes", "keys"),
    [
        ({}, 4096 - 2048),
        ({"seqlen_k": 16384}, 16384 - 2048),  # benchmark_attn.py: (16384 - 4096 + 16384) / 2
        ({"seqlen_k": 16384, "causal": False}, 16384),
        ({"seqlen_k": 1024, "causal": False}, 1024),
        ({"kv_heads": 4}, 4096 - 2048),
        ({"batch": 1, "seqlens": (4096,)}, 4096 - 2048),
    ],
)
def test_flops_are_the_libraries(axes, keys):
    case = Case(name="c", **{"batch": 2, "heads": 32, "seqlen": 4096, "headdim": 128} | axes)
    assert FORWARD.flops(case) == 4 * case.batch * 32 * 4096 * keys * 128
    assert BACKWARD.flops(case) == 2.5 * FORWARD.flops(case)
    assert FORWARD.exponentials(case) == case.batch * 32 * 4096 * keys


def test_each_packed_sequence_counts_for_itself():
    packed = Case(name="c", batch=1, heads=8, seqlen=3000, seqlens=(1000, 2000), headdim=64)
    alone = [packed.model_copy(update={"seqlen": n, "seqlens": ()}) for n in packed.seqlens]
    for problem in PROBLEMS.values():
        assert problem.flops(packed) == sum(map(problem.flops, alone))
        assert problem.io_bytes(packed) == sum(map(problem.io_bytes, alone))


def test_packed_sequences_come_in_a_drawn_order_of_the_same_lengths():
    case = CASES["packed gqa"]
    found = set()
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        edges = forward_tensors.make_inputs(case, "normal", generator, CPU, USUAL)[3:]
        assert torch.equal(*edges) and edges[0].dtype == torch.int32
        found.add(tuple(edges[0].diff().tolist()))
    assert len(found) > 5
    assert {tuple(sorted(lengths)) for lengths in found} == {(1, 2, 28, 33)}


def test_shared_heads_and_other_lengths_change_the_bytes_of_k_and_v():
    case = Case(name="c", batch=2, heads=32, kv_heads=8, seqlen=10, seqlen_k=30, headdim=64)
    q, k = 2 * 2 * 32 * 10 * 64, 2 * 2 * 8 * 30 * 64
    assert FORWARD.io_bytes(case) == 2 * q + 2 * k
    assert BACKWARD.io_bytes(case) == 4 * q + 4 * k + 4 * 2 * 32 * 10


# -------------------------------------------------------------------------------------------- probes


@given(
    st.integers(1, 300), st.integers(1, 300), st.sampled_from([(3, None), (8, 1), (8, 2), (6, 6)]),
    st.sampled_from([1, 16, 64]), st.sampled_from(["both", "true", "false"]), st.booleans(),
)  # fmt: skip
def test_probes_are_sound_cases_inside_the_claims(
    seqlen, seqlen_k, heads, step, causal, any_length
):
    mask = causal != "false" and seqlen <= seqlen_k
    case = Case(
        name="c", batch=1, heads=heads[0], kv_heads=heads[1], seqlen=seqlen * step,
        seqlen_k=seqlen_k * step if any_length else None, headdim=64, causal=mask,
    )  # fmt: skip
    lengths = "any" if any_length else "equal"
    claims = Claims(causal=causal, seqlen_multiple=step, gqa=heads[1] is not None, seqlens=lengths)
    if claims.refusal(case):
        return
    for problem in PROBLEMS.values():
        for probe in problem.probes(case, claims):
            assert Case.model_validate(probe.case.model_dump()) == probe.case
            assert not claims.refusal(probe.case), probe.label
            assert probe.kwargs["causal"] == probe.case.causal


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=lambda p: p.name)
def test_the_axes_of_a_case_are_probed_and_no_others(problem):
    plain = Case(name="c", batch=1, heads=4, seqlen=256, headdim=64)
    for probe in problem.probes(plain, ALL):
        assert probe.case.kv_shape == probe.case.shape
        assert not probe.case.seqlens
    axes = {"kv_heads": 1, "seqlen_k": 300}
    probed = [p.case for p in problem.probes(plain.model_copy(update=axes), ALL)]
    assert {case.heads // case.kv_heads for case in probed if case.kv_heads} == {3, 4}
    assert {case.kv_heads for case in probed} == {None, 1, 2}
    assert {case.seqlen_k - case.seqlen for case in probed if case.seqlen_k} >= {316, 1, 255}
    packed = plain.model_copy(update={"seqlens": (200, 56)})
    probed = [p.case for p in problem.probes(packed, ALL)]
    assert all(1 in case.seqlens for case in probed)
    assert {case.seqlens for case in probed} >= {(129, 1, 17, 64), (1, 333, 1), (85, 256, 1, 128)}
    shared = plain.model_copy(update={"heads": 32, "kv_heads": 4, "seqlen_k": 4096})
    near = [p.case for p in problem.probes(shared, ALL) if p.case.heads == 16]
    assert near, "groups of 8 heads, as in the case"
    assert all(case.kv_heads == 2 and case.seqlen_k > case.seqlen for case in near)


@pytest.mark.parametrize(
    ("claims", "case", "why"),
    [
        (Claims(), "gqa", "claims no gqa; k has 2 heads for 6 of q"),
        (Claims(gqa=True), "gqa", ""),
        (Claims(), "more keys", "claims seqlens: equal, not 50 keys for 17 queries"),
        (Claims(seqlens="any"), "more keys", ""),
        (Claims(seqlens="any"), "both", "claims no gqa"),
        (Claims(seqlens="any", seqlen_multiple=17), "more keys", "divisible by 17, not 50"),
        (Claims(seqlens="any", seqlen_min=20), "fewer keys", "from 20, not 17"),
        (Claims(), "packed", "claims no packed; 3 sequences lie in one row"),
        (Claims(packed=True), "packed", ""),
        (Claims(packed=True, seqlen_min=2), "packed", "from 2, not 1"),
    ],
)
def test_what_is_not_claimed_is_refused_with_the_reason(claims, case, why):
    claims = claims.model_copy(update={"headdims": (16,)})
    said = claims.refusal(CASES[case])
    assert why in said
    assert bool(said) == bool(why)


# -------------------------------------------------------------------------------------------- suites


def test_what_is_unset_or_equal_is_not_written():
    plain = Case(name="c", batch=1, heads=4, seqlen=8, headdim=64)
    same = Case(name="c", batch=1, heads=4, kv_heads=4, seqlen=8, seqlen_k=8, headdim=64)
    assert same == plain
    assert set(plain.model_dump()) == {
        "name", "batch", "heads", "seqlen", "headdim", "causal", "dtype", "burst",
    }  # fmt: skip
    for case in CASES.values():
        assert Case.model_validate(case.model_dump(mode="json")) == case


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("heads: 6, batch: 2, seqlens: [8]", ":4: cases.1.seqlens: .*write batch: 1, not 2"),
        ("heads: 6, kv_heads: 4", ":4: cases.1.kv_heads: .*6 is none of 4"),
        ("heads: 6, kv_heads: 12", ":4: cases.1.kv_heads: .*multiple of kv_heads"),
        ("heads: 6, seqlen_k: 7", ":4: cases.1.seqlen_k: .*first 1 of 8 queries would see no key"),
        ("heads: 6, seqlen_k: 0", ":4: cases.1.seqlen_k: .*got 0"),
        ("heads: 6, kvheads: 2", "Did you mean 'kv_heads'"),
        ("heads: 6, seqlens: [3, 4]", ":4: cases.1.seqlens: .*write seqlen: 7"),
        ("heads: 6, seqlens: [8, 0]", ":4: cases.1.seqlens.1: .*got 0"),
        ("heads: 6, seqlens: [8], seqlen_k: 9", ":4: cases.1.seqlens: .*leave out seqlen_k"),
    ],
)
def test_a_combination_that_cannot_be_names_its_line(tmp_path: Path, case, message):
    path = tmp_path / "mine.yaml"
    sound = "  - {name: a, batch: 1, heads: 1, seqlen: 8, headdim: 64}\n"
    batch = "" if "batch" in case else "batch: 1, "
    wrong = f"  - {{name: b, {batch}seqlen: 8, headdim: 64, {case}}}\n"
    path.write_text(f"name: mine\ncases:\n{sound}{wrong}")
    with pytest.raises(
        SuiteError, match=f"(?s)mine.yaml{message}" if message[0] == ":" else message
    ):
        load_suite(str(path), tmp_path)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=lambda p: p.name)
def test_the_null_kernel_answers_every_case_of_a_mixed_suite(problem, tmp_path):
    plain = Case(name="c", batch=1, heads=4, seqlen=8, headdim=16)
    cases = (plain, *(case for case in CASES.values()))
    entrant = null_entrant(problem, cases, tmp_path / "null")
    spec = importlib.util.spec_from_file_location("null", entrant.entry_path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for case in cases:
        assert not entrant.manifest.claims.refusal(case)
        specs = problem.inputs(case)
        inputs = [torch.zeros(s.shape, dtype=torch.float16) for s in specs]
        call = by_name(getattr(module, problem.function), keywords(specs))
        found = call(*inputs, **problem.kwargs(case))
        found = found if isinstance(found, tuple) else (found,)
        assert [tuple(x.shape) for x in found] == [s.shape for s in problem.outputs(case)]


@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("fixed", [0, 10, 20, 40, 80, 120, 160])
def test_a_softmax_that_follows_no_maximum_is_refused_in_each_type(
    fixed: int, dtype: Dtype
) -> None:
    case, exact = Case(name="c", batch=1, heads=2, seqlen=256, headdim=64, dtype=dtype), []
    for kind in ("normal", "large_logits"):
        q, k, v = forward_tensors.make_inputs(
            case, kind, torch.Generator().manual_seed(3), CPU, USUAL
        )
        scores = (q.float() @ k.float().mT / 8).masked_fill(
            ~torch.ones(256, 256).tril().bool(), -math.inf
        )
        p = torch.exp(scores - fixed)
        out = (p.to(q.dtype) @ v) / p.sum(-1, keepdim=True)
        truth = forward_tensors.exact((q, k, v), USUAL)[0]
        expected = Reference(forward_tensors.contract((q, k, v), USUAL)[0], truth)
        exact.append(FORWARD.limits(dtype).exact(error_of(out.to(q.dtype), expected)))
    assert not all(exact)


@pytest.mark.parametrize("dtype", list(Dtype))
def test_who_asks_for_a_maximum_where_q_looks_odd_is_refused(dtype: Dtype) -> None:
    """A look at q is cheap; k is read in the loop that a maximum would slow down."""
    case = Case(name="c", batch=1, heads=8, seqlen=256, headdim=64, dtype=dtype)
    q, k, v = forward_tensors.make_inputs(
        case, "large_logits", torch.Generator().manual_seed(3), CPU, USUAL
    )
    scores = (q.float() @ k.float().mT / 8).masked_fill(
        ~torch.ones(256, 256).tril().bool(), -math.inf
    )
    usual = q.float().abs().amax((2, 3), keepdim=True) < 7  # [1, H, 1, 1]
    assert usual.any()
    assert not usual.all()
    p = torch.exp(scores - torch.where(usual, 0, scores.amax(-1, keepdim=True)))
    out = ((p.to(q.dtype) @ v) / p.sum(-1, keepdim=True)).to(q.dtype)
    truth = forward_tensors.exact((q, k, v), USUAL)[0]
    expected = Reference(forward_tensors.contract((q, k, v), USUAL)[0], truth)
    assert not FORWARD.limits(dtype).exact(error_of(out, expected))
    alike = torch.where(usual, truth, out)
    assert FORWARD.limits(dtype).exact(error_of(alike.to(q.dtype), expected)), (
        "the others are right"
    )
