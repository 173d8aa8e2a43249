"""Adapters of PyTorch's own attention, and of what it can be switched to."""

from __future__ import annotations

import inspect
import sys

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from harness.problems import attention_forward_tensors as tensors  # noqa: E402
from harness.schema import Case  # noqa: E402

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


FA4 = {"flash_attn/__init__.py": "", "flash_attn/cute/__init__.py": ""}
FIVE = """
    def _flash_attn_fwd():
        return "out", "lse", None, None, None

    _flash_attn_fwd.compile_cache = {}
    _flash_attn_bwd = None
"""
FILES = {
    "fa3": {"flash_attn_interface.py": ""},
    "fa4": FA4 | {"flash_attn/cute/interface.py": FIVE},
}
INSTALL = {"fa3": "pip install flash-attn-3", "fa4": "pip install flash-attn-4==4"}
CASES = [
    Case(name="c", batch=2, heads=4, kv_heads=2, seqlen=24, headdim=16),
    Case(name="c", batch=2, heads=3, seqlen=24, seqlen_k=40, headdim=16),
]
each_library = pytest.mark.parametrize("library", FILES)


@pytest.fixture
def activated(load, monkeypatch):
    """activated(name, library) -> (the adapter, what it activated)."""
    seen = []
    monkeypatch.setattr(torch.nn.attention, "activate_flash_attention_impl", seen.append)

    def _load(name, library):
        return load(f"baselines/{name}", files=FILES[library]), seen

    return _load


@each_library
def test_it_is_activated_when_it_is_loaded(activated, library):
    for name in (f"sdpa_{library}", f"sdpa_{library}_backward"):
        _, seen = activated(name, library)
        assert seen.pop() == library.upper()


@each_library
@pytest.mark.parametrize("case", CASES, ids=["shared heads", "more keys"])
@pytest.mark.parametrize("causal", [True, False])
def test_what_is_activated_is_attention(activated, monkeypatch, library, case, causal):
    module, _ = activated(f"sdpa_{library}", library)
    monkeypatch.setattr(module, "_check_gpu", lambda device: None)
    kwargs = {"causal": causal, "sm_scale": None}
    generator = torch.Generator().manual_seed(0)
    inputs = tensors.make_inputs(case, "normal", generator, torch.device("cpu"), kwargs)
    before = torch.backends.cuda.math_sdp_enabled(), torch.backends.cuda.cudnn_sdp_enabled()
    out = module.custom_attention_forward(*inputs, **kwargs)
    assert (out - tensors.exact(inputs, kwargs)[0]).abs().max() < 2e-3
    after = torch.backends.cuda.math_sdp_enabled(), torch.backends.cuda.cudnn_sdp_enabled()
    assert after == before


@each_library
@pytest.mark.parametrize("packed", [True, False])
def test_the_operators_take_these_arguments(activated, monkeypatch, library, packed):
    """Fake kernels check names, order, types and shapes; which library answers is PyTorch's affair."""
    forward, _ = activated(f"sdpa_{library}", library)
    backward, _ = activated(f"sdpa_{library}_backward", library)
    for module in (forward, backward):
        monkeypatch.setattr(module, "_check_gpu", lambda device: None)
    with FakeTensorMode():
        q = torch.empty(1, 4, 40, 64, dtype=torch.bfloat16, device="cuda")
        k = torch.empty(1, 4, 40, 64, dtype=torch.bfloat16, device="cuda")
        edges = torch.empty(4, dtype=torch.int32, device="cuda")
        kwargs = {"cu_seqlens_q": edges, "cu_seqlens_k": edges}
        kwargs = kwargs | {"max_seqlen_q": 30, "max_seqlen_k": 30} if packed else {}
        if packed:
            assert forward.custom_attention_forward(q, k, k, **kwargs).shape == q.shape
        lse = torch.empty(1, 4, 40, device="cuda")
        found = backward.custom_attention_backward(q, k, k, q, lse, q, **kwargs)
    assert [x.shape for x in found] == [q.shape, k.shape, k.shape]


@each_library
@pytest.mark.parametrize("end", ["", "_backward"])
def test_what_is_missing_is_named_with_its_install_line(load, library, end):
    hidden = tuple({path.split("/")[0].removesuffix(".py") for path in FILES[library]})
    with pytest.raises(ImportError, match=f"needs torch 2.11 or newer.*{INSTALL[library]}"):
        load(f"baselines/sdpa_{library}{end}", hide=hidden)


@each_library
def test_a_cpu_or_an_older_gpu_is_refused_with_the_baseline_to_run_instead(
    activated, monkeypatch, library
):
    forward, _ = activated(f"sdpa_{library}", library)
    q = torch.zeros(1, 1, 8, 16)
    with pytest.raises(NotImplementedError, match=r"needs a GPU.*`sdpa`"):
        forward.custom_attention_forward(q, q, q)
    backward, _ = activated(f"sdpa_{library}_backward", library)
    with pytest.raises(NotImplementedError, match=r"needs a GPU.*`sdpa_backward`"):
        backward.custom_attention_backward(q, q, q, q, q[..., 0], q)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Old GPU")
    with pytest.raises(NotImplementedError, match=r"Old GPU has 8\.0.*`sdpa_flash`"):
        forward._check_gpu(torch.device("cuda", 0))


def test_pytorch_gets_as_many_of_flash_attn_4_s_values_as_it_takes(activated, monkeypatch):
    activated("sdpa_fa4", "fa4")
    forward = sys.modules["flash_attn.cute"].interface._flash_attn_fwd
    assert forward() == ("out", "lse"), "as PyTorch up to 2.13 takes them"
    assert forward.compile_cache == {}, "the library finds its kernels by the function's name"
    monkeypatch.setattr(inspect, "getsource", lambda _: "out, lse, *rest = module._flash_attn_fwd(")
    activated("sdpa_fa4", "fa4")
    assert len(sys.modules["flash_attn.cute"].interface._flash_attn_fwd()) == 5


def test_flex_attention_is_asked_for_its_flash_backend(load, monkeypatch):
    module, seen = load("baselines/flex_attention_fa4", files=FA4), []
    monkeypatch.setattr(module, "_check_gpu", lambda device: None)
    monkeypatch.setattr(module, "_compiled", lambda *a, **kwargs: seen.append(kwargs))
    q, k = torch.zeros(1, 4, 128, 64), torch.zeros(1, 2, 256, 64)
    module.custom_attention_forward(q, k, k, causal=True, sm_scale=0.3)
    assert seen[0]["kernel_options"] == {"BACKEND": "FLASH"}
    assert seen[0]["enable_gqa"]
    assert seen[0]["scale"] == 0.3
    mask = seen[0]["block_mask"].mask_mod
    assert [bool(mask(0, 0, 0, kv)) for kv in (128, 129)] == [True, False]


def test_flex_attention_without_flash_attn_4_says_what_to_install(load):
    with pytest.raises(ImportError, match=r"flex_attention_fa4 needs .*flash-attn-4==4"):
        load("baselines/flex_attention_fa4", hide=("flash_attn",))
