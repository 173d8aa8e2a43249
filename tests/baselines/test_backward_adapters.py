"""The backward baselines on a CPU: PyTorch's operators by fake tensors, the libraries by stand-ins."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from harness.problems import attention_backward_tensors as tensors  # noqa: E402
from harness.problems.attention_backward import PROBLEM  # noqa: E402
from harness.problems.base import by_name, keywords, probe_of  # noqa: E402
from harness.schema import Case  # noqa: E402

OPERATORS = ["sdpa_flash_backward", "sdpa_cudnn_backward", "sdpa_efficient_backward"]
CASE = Case(name="c", batch=2, heads=3, seqlen=40, headdim=32)

# The libraries' argument order and layout: (batch, seqlen, heads, headdim), lse (batch, heads, seqlen).
SOLVE = """
    import torch

    asked = []  # for deterministic gradients, in each call

    def solve(dout, q, k, v, out, lse, scale, causal, edges=None):
        # Packed: (tokens, heads, headdim), lse (heads, tokens). Causal is bottom-right.
        if edges is not None:
            ends = edges.tolist()
            each = [
                solve(*(x[None, a:b] for x in (dout, q, k, v, out)), lse[None, :, a:b], scale, causal)
                for a, b in zip(ends, ends[1:])
            ]
            return [torch.cat([x[0] for x in grads]) for grads in zip(*each)]
        assert lse.shape == (q.shape[0], q.shape[2], q.shape[1]) and lse.dtype == torch.float32
        q, k, v, out, dout = (x.transpose(1, 2).double() for x in (q, k, v, out, dout))
        group = q.shape[1] // k.shape[1]
        shape = (*k.shape[:2], group, *k.shape[2:])
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        p = (q @ k.mT * scale - lse[..., None]).exp()
        if causal:
            p = p.tril(k.shape[2] - q.shape[2])
        ds = p * (dout @ v.mT - (dout * out).sum(-1, keepdim=True)) * scale
        dk, dv = ((x.mT @ y).view(shape).sum(2) for x, y in ((ds, q), (p, dout)))
        return [x.transpose(1, 2) for x in (ds @ k, dk, dv)]

    def fill(targets, grads):
        for target, grad in zip(targets, grads):
            target.copy_(grad)
"""
FA2 = """
    from solve import solve, fill

    def _flash_attn_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal,
        window_size_left, window_size_right, softcap, alibi_slopes, deterministic, rng_state=None,
    ):
        fill((dq, dk, dv), solve(dout, q, k, v, out, softmax_lse, softmax_scale, causal))

    def _flash_attn_varlen_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
        max_seqlen_k, dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap,
        alibi_slopes, deterministic, rng_state=None,
    ):
        grads = solve(dout, q, k, v, out, softmax_lse, softmax_scale, causal, cu_seqlens_q)
        fill((dq, dk, dv), grads)
"""
FA3 = """
    from solve import asked, solve, fill

    def _flash_attn_backward(
        dout, q, k, v, out, softmax_lse, cu_seqlens_q=None, cu_seqlens_k=None, sequed_q=None,
        sequed_k=None, max_seqlen_q=None, max_seqlen_k=None, dq=None, dk=None, dv=None,
        softmax_scale=None, is_causal=False, window_size_left=-1, window_size_right=-1,
        softcap=0.0, deterministic=False,
    ):
        asked.append(deterministic)
        grads = solve(dout, q, k, v, out, softmax_lse, softmax_scale, is_causal, cu_seqlens_q)
        fill((dq, dk, dv), grads)
"""
FA4 = """
    from solve import asked, solve

    def _flash_attn_bwd(
        q, k, v, out, dout, lse, softmax_scale=None, causal=False, softcap=0.0, cu_seqlens_q=None,
        cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, deterministic=False,
    ):
        asked.append(deterministic)
        grads = solve(dout, q, k, v, out, lse, softmax_scale, causal, cu_seqlens_q)
        return tuple(x.to(q.dtype) for x in grads)
"""
LIBRARIES = {
    "flash_attn_2_backward": {
        "flash_attn/__init__.py": '__version__ = "2.8.3"',
        "flash_attn/flash_attn_interface.py": FA2,
    },
    "flash_attn_3_backward": {"flash_attn_interface.py": FA3},
    "flash_attn_4_backward": {
        "flash_attn/__init__.py": "",
        "flash_attn/cute/__init__.py": "",
        "flash_attn/cute/interface.py": FA4,
    },
}
for _name in ("flash_attn_3_backward", "flash_attn_4_backward"):
    LIBRARIES[f"{_name}_deterministic"] = LIBRARIES[_name]


AXES = {
    "shared heads": Case(name="c", batch=2, heads=6, kv_heads=2, seqlen=40, headdim=32),
    "more keys": Case(name="c", batch=2, heads=3, seqlen=40, seqlen_k=70, headdim=32),
    "packed": Case(
        name="c", batch=1, heads=4, kv_heads=2, seqlen=60, seqlens=(19, 40, 1), headdim=32
    ),
}


def check(backward, kwargs, case=CASE):
    kwargs = {**probe_of(case, "normal", kwargs["causal"]).kwargs, **kwargs}
    generator = torch.Generator().manual_seed(0)
    inputs = tensors.make_inputs(case, "normal", generator, torch.device("cpu"), kwargs)
    with torch.no_grad():
        found = by_name(backward, keywords(PROBLEM.inputs(case)))(*inputs, **kwargs)
    for mine, want in zip(found, tensors.exact(inputs, kwargs), strict=True):
        assert mine.shape == want.shape
        assert (mine.double() - want).norm() < 1.5e-3 * want.norm()


@pytest.mark.parametrize("name", OPERATORS)
def test_the_operators_take_these_arguments(load, name):
    """Their fake kernels check names, order, types and shapes as the real ones do; no GPU is asked."""
    backward = load(f"baselines/{name}").custom_attention_backward
    with FakeTensorMode():
        q = torch.empty(2, 3, 40, 64, dtype=torch.float16, device="cuda")
        lse = torch.empty(2, 3, 40, device="cuda")
        found = backward(q, q, q, q, lse, q, causal=True, sm_scale=0.3)
    assert [(x.shape, x.dtype) for x in found] == [(q.shape, torch.float16)] * 3


@pytest.mark.parametrize("name", ["sdpa_flash_backward", "sdpa_backward"])
def test_the_varlen_operator_takes_these_arguments(load, name):
    backward = load(f"baselines/{name}").custom_attention_backward
    with FakeTensorMode():
        q = torch.empty(1, 4, 40, 64, dtype=torch.float16, device="cuda")
        k = torch.empty(1, 2, 40, 64, dtype=torch.float16, device="cuda")
        edges = torch.empty(4, dtype=torch.int32, device="cuda")
        lengths = {"cu_seqlens_q": edges, "cu_seqlens_k": edges}
        lse = torch.empty(1, 4, 40, device="cuda")
        found = backward(q, k, k, q, lse, q, **lengths, max_seqlen_q=30, max_seqlen_k=30)
    assert [x.shape for x in found] == [q.shape, k.shape, k.shape]


def test_cudnn_gets_lse_as_its_forward_saves_it(load, monkeypatch):
    """(batch, heads, seqlen, 1); a fake kernel takes any shape, the real one refuses the whole graph."""
    module, seen = load("baselines/sdpa_cudnn_backward"), []
    monkeypatch.setattr(module, "_backward", lambda *args, **_: seen.append(args[5].shape))
    with FakeTensorMode():
        q = torch.empty(2, 3, 40, 64, dtype=torch.float16, device="cuda")
        module.custom_attention_backward(q, q, q, q, torch.empty(2, 3, 40, device="cuda"), q)
    assert seen == [(2, 3, 40, 1)]


def test_the_efficient_operator_gets_o_as_its_forward_leaves_it(load, monkeypatch):
    """(batch, seqlen, heads, headdim) seen transposed; of a contiguous o the real kernel makes other gradients."""
    module, seen = load("baselines/sdpa_efficient_backward"), []
    monkeypatch.setattr(module, "_backward", lambda *args, **_: [seen.append(args[5])] * 4)
    with FakeTensorMode():
        q = torch.empty(2, 3, 32, 64, dtype=torch.float16, device="cuda")
        module.custom_attention_backward(q, q, q, q, torch.empty(2, 3, 32, device="cuda"), q)
    assert seen[0].shape == q.shape
    assert seen[0].transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("name", OPERATORS)
def test_a_cpu_tensor_is_refused_with_the_baseline_to_run_instead(load, name):
    q = torch.zeros(1, 1, 8, 16)
    with pytest.raises(NotImplementedError, match=rf"{name} needs a GPU.*`sdpa_backward`"):
        load(f"baselines/{name}").custom_attention_backward(q, q, q, q, q[..., 0], q)


@pytest.mark.parametrize(
    "kwargs", [{"causal": True, "sm_scale": None}, {"causal": False, "sm_scale": 0.3}]
)
def test_sdpa_backward_is_the_gradient(load, kwargs):
    backward = load("baselines/sdpa_backward").custom_attention_backward
    for case in (CASE, *AXES.values()):
        check(backward, kwargs, case)


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_gets_its_layout_and_order(load, monkeypatch, name):
    files = {"solve.py": SOLVE, **LIBRARIES[name]}
    module = load(f"baselines/{name}", files=files)
    monkeypatch.setattr(module, "_check_gpu", lambda device: None)
    for kwargs in ({"causal": True, "sm_scale": None}, {"causal": False, "sm_scale": 0.3}):
        for case in (CASE, *AXES.values()):
            check(module.custom_attention_backward, kwargs, case)
    asked = set(sys.modules["solve"].asked)
    assert asked <= {name.endswith("_deterministic")}, "by its name, in every call"


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_missing_library_is_named_with_its_install_line(load, name):
    hidden = tuple({path.split("/")[0].removesuffix(".py") for path in LIBRARIES[name]})
    with pytest.raises(ImportError, match=rf"{name} needs"):
        load(f"baselines/{name}", hide=hidden)
