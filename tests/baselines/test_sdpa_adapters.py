"""The sdpa family on a CPU: two run there, three say they cannot, no switch stays turned."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

GPU_ONLY = ["sdpa_cudnn", "sdpa_flash", "sdpa_efficient"]
EVERYWHERE = ["sdpa", "sdpa_math"]


def switches() -> tuple[bool, ...]:
    cuda = torch.backends.cuda
    return (
        cuda.cudnn_sdp_enabled(),
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
    )


class OnGpu:
    """Stands for a GPU tensor as far as the adapters look before they call SDPA."""

    is_cuda = True
    shape = (1, 2, 8, 16)
    dtype = torch.float16
    device = "cuda:0"


def reference(q, k, v, causal, scale):
    scores = q.double() @ k.double().mT * scale
    if causal:
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~keep, float("-inf"))
    return scores.softmax(-1) @ v.double()


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_it_is_attention(load, name, causal, scale):
    forward = load(f"baselines/{name}").custom_attention_forward
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 33, 16, dtype=torch.float16) for _ in range(3))
    out = forward(q, k, v, causal=causal, sm_scale=scale)
    want = reference(q, k, v, causal, 0.25 if scale is None else scale)
    assert out.shape == q.shape
    assert out.dtype == q.dtype
    assert (out - want).abs().max() < 2e-3


@pytest.mark.parametrize("name", GPU_ONLY)
def test_a_cpu_tensor_is_refused_with_the_baseline_to_run_instead(load, name):
    forward = load(f"baselines/{name}").custom_attention_forward
    q = torch.zeros(1, 1, 8, 16)
    with pytest.raises(NotImplementedError, match=rf"{name} needs a GPU.*`sdpa`"):
        forward(q, q, q)


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        ("sdpa_cudnn", (True, False, False, False)),
        ("sdpa_flash", (False, True, False, False)),
        ("sdpa_efficient", (False, False, True, False)),
    ],
)
def test_exactly_one_backend_is_on_during_the_call_and_all_come_back(
    load, monkeypatch, name, inside
):
    module = load(f"baselines/{name}")
    before, seen = switches(), []
    monkeypatch.setattr(
        module.F, "scaled_dot_product_attention", lambda *a, **kw: seen.append(switches())
    )
    module.custom_attention_forward(OnGpu(), OnGpu(), OnGpu())
    assert seen == [inside]
    assert switches() == before


def test_the_varlen_operator_takes_packed_sequences(load):
    """Its fake kernel checks names, order, types and shapes as the real one does; cuDNN's has none."""
    forward = load("baselines/sdpa_flash").custom_attention_forward
    with FakeTensorMode():
        q = torch.empty(1, 4, 40, 64, dtype=torch.bfloat16, device="cuda")
        k = torch.empty(1, 2, 40, 64, dtype=torch.bfloat16, device="cuda")
        edges = torch.empty(4, dtype=torch.int32, device="cuda")
        lengths = {"cu_seqlens_q": edges, "cu_seqlens_k": edges}
        out = forward(q, k, k, **lengths, max_seqlen_q=30, max_seqlen_k=30)
    assert (out.shape, out.dtype) == (q.shape, q.dtype)


def test_cudnn_s_bias_is_the_bottom_right_mask(load):
    bias = load("baselines/sdpa_cudnn")._lower_right(3, 5, torch.float16, torch.device("cpu"))
    seen = [[True, True, True, False, False], [True] * 4 + [False], [True] * 5]
    assert (bias == 0).tolist() == seen
    assert bias[0, 3] == float("-inf")


@pytest.mark.parametrize("name", GPU_ONLY)
@pytest.mark.parametrize("refusal", ["No available kernel. Aborting execution.", "Invalid backend"])
def test_a_case_without_a_kernel_is_explained_and_the_switches_come_back(
    load, monkeypatch, name, refusal
):
    module = load(f"baselines/{name}")

    def no_kernel(*args, **kwargs):
        raise RuntimeError(refusal)

    before = switches()
    monkeypatch.setattr(module.F, "scaled_dot_product_attention", no_kernel)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Old GPU")
    with pytest.raises(NotImplementedError, match=rf"{name}.*Old GPU.*`sdpa`"):
        module.custom_attention_forward(OnGpu(), OnGpu(), OnGpu())
    assert switches() == before


@pytest.mark.parametrize("name", GPU_ONLY)
def test_any_other_error_passes_through(load, monkeypatch, name):
    module = load(f"baselines/{name}")

    def out_of_memory(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(module.F, "scaled_dot_product_attention", out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        module.custom_attention_forward(OnGpu(), OnGpu(), OnGpu())


@pytest.mark.parametrize("name", ["mask_off_by_one", "wrong_layout"])
def test_the_wrong_baselines_are_wrong(load, name):
    """Right shape and dtype, finite, and far beyond the gate: that is what makes them a test."""
    forward = load(f"tests/bad_baselines/{name}").custom_attention_forward
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 64, 16, dtype=torch.float16) for _ in range(3))
    out = forward(q, k, v)
    assert out.shape == q.shape
    assert out.dtype == q.dtype
    assert out.isfinite().all()
    assert (out - reference(q, k, v, True, 0.25)).abs().max() > 0.1


def test_the_mask_is_off_by_one_only_where_there_is_a_mask(load):
    forward = load("tests/bad_baselines/mask_off_by_one").custom_attention_forward
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 64, 16, dtype=torch.float16) for _ in range(3))
    out = forward(q, k, v, causal=False)
    assert (out - reference(q, k, v, False, 0.25)).abs().max() < 2e-3
