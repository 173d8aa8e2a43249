"""The backward baselines on a CPU: PyTorch's operators by fake tensors, the libraries by stand-ins."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from harness.problems import attention_backward_tensors as tensors  # noqa: E402
from harness.schema import Case  # noqa: E402

OPERATORS = ["sdpa_flash_backward", "sdpa_cudnn_backward", "sdpa_efficient_backward"]
CASE = Case(name="c", batch=2, heads=3, seqlen=40, headdim=32)

# The libraries' argument order and layout: (batch, seqlen, heads, headdim), lse (batch, heads, seqlen).
SOLVE = """
    import torch

    def solve(dout, q, k, v, out, lse, scale, causal):
        assert lse.shape == (q.shape[0], q.shape[2], q.shape[1]) and lse.dtype == torch.float32
        q, k, v, out, dout = (x.transpose(1, 2) for x in (q, k, v, out, dout))
        grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            dout, q, k, v, out, lse, 0.0, causal, scale=scale
        )
        return [x.transpose(1, 2) for x in grads]

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
"""
FA3 = """
    from solve import solve, fill

    def _flash_attn_backward(
        dout, q, k, v, out, softmax_lse, cu_seqlens_q=None, cu_seqlens_k=None, sequed_q=None,
        sequed_k=None, max_seqlen_q=None, max_seqlen_k=None, dq=None, dk=None, dv=None,
        softmax_scale=None, is_causal=False, window_size_left=-1, window_size_right=-1,
    ):
        fill((dq, dk, dv), solve(dout, q, k, v, out, softmax_lse, softmax_scale, is_causal))
"""
FA4 = """
    from solve import solve

    def _flash_attn_bwd(q, k, v, out, dout, lse, softmax_scale=None, causal=False, softcap=0.0):
        return tuple(solve(dout, q, k, v, out, lse, softmax_scale, causal))
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


def draw(kwargs):
    generator = torch.Generator().manual_seed(0)
    return tensors.make_inputs(CASE, "normal", generator, torch.device("cpu"), kwargs)


def check(backward, kwargs):
    inputs = draw(kwargs)
    with torch.no_grad():
        found = backward(*inputs, **kwargs)
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
    check(load("baselines/sdpa_backward").custom_attention_backward, kwargs)


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_gets_its_layout_and_order(load, monkeypatch, name):
    files = {"solve.py": SOLVE, **LIBRARIES[name]}
    module = load(f"baselines/{name}", files=files)
    monkeypatch.setattr(module, "_check_gpu", lambda device: None)
    for kwargs in ({"causal": True, "sm_scale": None}, {"causal": False, "sm_scale": 0.3}):
        check(module.custom_attention_backward, kwargs)


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_missing_library_is_named_with_its_install_line(load, name):
    hidden = tuple({path.split("/")[0].removesuffix(".py") for path in LIBRARIES[name]})
    with pytest.raises(ImportError, match=rf"{name} needs"):
        load(f"baselines/{name}", hide=hidden)
