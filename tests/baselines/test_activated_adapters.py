"""SDPA with FlashAttention-3 activated, FlexAttention on FlashAttention-4: stand-ins for the libraries."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from harness.problems import attention_forward_tensors as tensors  # noqa: E402
from harness.schema import Case  # noqa: E402

FILES = {"fa3": {"flash_attn_interface.py": ""}}
INSTALL = {"fa3": "pip install flash-attn-3"}
FA4 = {"flash_attn/__init__.py": "", "flash_attn/cute/__init__.py": ""}
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
def test_it_is_attention(activated, monkeypatch, library, case, causal):
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


def test_flex_attention_is_asked_for_its_flash_backend(load, monkeypatch):
    module, seen = load("baselines/flex_attention_fa4", files=FA4), []
    monkeypatch.setattr(module, "_check_gpu", lambda device: None)
    monkeypatch.setattr(module, "_compiled", lambda *a, **kwargs: seen.append(kwargs))
    q, k = torch.zeros(1, 4, 128, 16), torch.zeros(1, 2, 256, 16)
    module.custom_attention_forward(q, k, k, causal=True, sm_scale=0.3)
    assert seen[0]["kernel_options"] == {"BACKEND": "FLASH"}
    assert seen[0]["enable_gqa"]
    assert seen[0]["scale"] == 0.3
    mask = seen[0]["block_mask"].mask_mod
    assert [bool(mask(0, 0, 0, kv)) for kv in (128, 129)] == [True, False]


def test_flex_attention_without_flash_attn_4_says_what_to_install(load):
    with pytest.raises(ImportError, match=r"flex_attention_fa4 needs .*flash-attn-4==4"):
        load("baselines/flex_attention_fa4", hide=("flash_attn",))
