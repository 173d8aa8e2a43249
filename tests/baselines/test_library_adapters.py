"""What a user reads when the library behind a baseline is missing, too old, or the GPU too small.

The libraries are not installed where this runs: stand-ins on sys.path take their place.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from harness.problems import attention_forward_tensors as tensors  # noqa: E402
from harness.problems.attention_forward import PROBLEM  # noqa: E402
from harness.problems.base import by_name, keywords, probe_of  # noqa: E402
from harness.schema import Case  # noqa: E402

# A stand-in with the library's calls and layouts: (batch, seqlen, heads, headdim) in and out, or of
# packed sequences (tokens, heads, headdim); its causal mask is bottom-right.
BSHD = """
    import torch
    import torch.nn.functional as F
    from torch.nn.attention.bias import causal_lower_right

    def flash_attn_func(q, k, v, softmax_scale=None, causal=False):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        lengths = q.shape[2], k.shape[2]
        mask = causal_lower_right(*lengths) if causal and len(set(lengths)) > 1 else None
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal and mask is None, scale=softmax_scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return out.transpose(1, 2)

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None,
        causal=False,
    ):
        assert max_seqlen_q == cu_seqlens_q.diff().max() == max_seqlen_k == cu_seqlens_k.diff().max()
        edges = cu_seqlens_q.tolist()
        each = [
            flash_attn_func(*(x[None, a:b] for x in (q, k, v)), softmax_scale, causal)[0]
            for a, b in zip(edges, edges[1:])
        ]
        return torch.cat(each)
"""
XFORMERS_OPS = """
    import torch.nn.functional as F
    from torch.nn.attention.bias import causal_lower_right

    class LowerTriangularMask:
        pass

    def memory_efficient_attention(q, k, v, attn_bias=None, scale=None):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        causal, mask = isinstance(attn_bias, LowerTriangularMask), None
        if attn_bias is not None and not causal:
            mask = causal_lower_right(q.shape[2], k.shape[2])
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, scale=scale
        )
        return out.transpose(1, 2)
"""
XFORMERS_BIAS = {
    "xformers/ops/fmha/__init__.py": "",
    "xformers/ops/fmha/attn_bias.py": "class LowerTriangularFromBottomRightMask: pass",
}
# Packed sequences of equal length, the mask bottom-right; counts its plans.
FLASHINFER = """
    import torch.nn.functional as F
    from torch.nn.attention.bias import causal_lower_right

    __version__ = "{version}"
    PLANS = []

    class BatchPrefillWithRaggedKVCacheWrapper:
        def __init__(self, workspace, kv_layout):
            assert kv_layout == "NHD"

        def plan(self, q_ends, kv_ends, num_qo_heads, num_kv_heads, head_dim_qk, causal, sm_scale,
                 q_data_type):
            self.heads = num_qo_heads, num_kv_heads
            self.sequences, self.causal, self.scale = len(q_ends) - 1, causal, sm_scale
            PLANS.append(tuple(q_ends.tolist()))

        def run(self, q, k, v, out=None):
            assert (q.shape[1], k.shape[1]) == self.heads
            q, k, v = (x.unflatten(0, (self.sequences, -1)).transpose(1, 2) for x in (q, k, v))
            uneven = self.causal and q.shape[2] != k.shape[2]
            mask = causal_lower_right(q.shape[2], k.shape[2]) if uneven else None
            found = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=self.causal and not uneven, scale=self.scale,
                enable_gqa=q.shape[1] != k.shape[1],
            ).transpose(1, 2).flatten(0, 1)
            return found if out is None else out.copy_(found)
"""


def dist_info(name: str, version: str) -> dict[str, str]:
    """The file that importlib.metadata reads the version of a package from."""
    folder = f"{name.replace('-', '_')}-{version}.dist-info"
    return {f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"}


@dataclass(frozen=True)
class Library:
    """One adapter, its stand-in library, and the words its errors must hold."""

    folder: str
    hide: tuple[str, ...]
    good: dict[str, str]
    old: dict[str, str]
    old_version: str
    install: str
    too_small: tuple[int, int]
    needs: str
    says: tuple[str, ...] = field(default=())


FA2_INIT = '__version__ = "{}"\n' + BSHD.replace("\n    ", "\n")
LIBRARIES = [
    Library(
        folder="baselines/flash_attn_2",
        hide=("flash_attn",),
        good={"flash_attn/__init__.py": FA2_INIT.format("2.8.4")},
        old={"flash_attn/__init__.py": FA2_INIT.format("1.0.9")},
        old_version="1.0.9",
        install="pip install flash-attn",
        too_small=(7, 5),
        needs="8.0",
    ),
    Library(
        folder="baselines/flash_attn_3",
        hide=("flash_attn_interface",),
        good={"flash_attn_interface.py": BSHD, **dist_info("flash-attn-3", "3.0.0")},
        old={"flash_attn_interface.py": BSHD, **dist_info("flash-attn-3", "2.9.0")},
        old_version="2.9.0",
        install="pip install flash-attn-3 --no-deps --index-url https://download.pytorch.org/whl/cu130",
        too_small=(8, 0),
        needs="9.0",
    ),
    Library(
        folder="baselines/flash_attn_4",
        hide=("flash_attn",),
        good={"flash_attn/cute/__init__.py": BSHD, **dist_info("flash-attn-4", "4.0.0b36")},
        old={"flash_attn/cute/__init__.py": BSHD, **dist_info("flash-attn-4", "3.9.9")},
        old_version="3.9.9",
        install="pip install flash-attn-4==4.0.0b36",
        too_small=(8, 0),
        needs="9.0",
    ),
    Library(
        folder="baselines/xformers",
        hide=("xformers",),
        good={
            "xformers/__init__.py": '__version__ = "0.0.35"',
            "xformers/ops/__init__.py": XFORMERS_OPS,
            **XFORMERS_BIAS,
        },
        old={
            "xformers/__init__.py": '__version__ = "0.0.16+cu117"',
            "xformers/ops/__init__.py": XFORMERS_OPS,
            **XFORMERS_BIAS,
        },
        old_version="0.0.16+cu117",
        install="pip install xformers",
        too_small=(7, 0),
        needs="8.0",
    ),
    Library(
        folder="baselines/flashinfer",
        hide=("flashinfer",),
        good={"flashinfer/__init__.py": FLASHINFER.replace("{version}", "0.7.2.post1")},
        old={"flashinfer/__init__.py": FLASHINFER.replace("{version}", "0.1.6")},
        old_version="0.1.6",
        install="pip install flashinfer-python",
        too_small=(7, 5),
        needs="8.0",
    ),
]
each_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda lib: lib.folder)


@each_library
def test_a_missing_library_says_how_to_install_it(load, library):
    with pytest.raises(ImportError, match=library.install) as caught:
        load(library.folder, hide=library.hide)
    assert caught.value.__cause__ is not None, "the first error must stay readable"


@each_library
def test_a_wrong_version_names_both_versions_and_the_install_line(load, library):
    with pytest.raises(ImportError) as caught:
        load(library.folder, files=library.old)
    text = str(caught.value)
    assert library.old_version in text
    assert library.install in text


@each_library
def test_a_cpu_tensor_is_refused_with_the_baseline_to_run_instead(load, library):
    forward = load(library.folder, files=library.good).custom_attention_forward
    q = torch.zeros(1, 1, 8, 16)
    with pytest.raises(NotImplementedError, match=r"needs a GPU.*`sdpa`"):
        forward(q, q, q)


@each_library
def test_a_gpu_that_is_too_small_is_named_with_its_capability(load, library, monkeypatch):
    module = load(library.folder, files=library.good)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: library.too_small)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Old GPU")
    with pytest.raises(NotImplementedError, match="Old GPU") as caught:
        module._check_gpu(torch.device("cuda", 0))
    text = str(caught.value)
    assert "{}.{}".format(*library.too_small) in text
    assert library.needs in text


@each_library
@pytest.mark.parametrize("causal", [True, False])
def test_the_layout_is_converted_both_ways(load, library, monkeypatch, causal):
    """Through a stand-in with the library's layout, the result is plain attention."""
    module = load(library.folder, files=library.good)
    monkeypatch.setattr(module, "_check_gpu", lambda device: None)
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 24, 16) for _ in range(3))
    out = module.custom_attention_forward(q, k, v, causal=causal, sm_scale=0.3)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.3)
    assert out.shape == q.shape
    torch.testing.assert_close(out, want)


AXES = {
    "shared heads": Case(name="c", batch=2, heads=6, kv_heads=2, seqlen=24, headdim=16),
    "more keys": Case(name="c", batch=2, heads=3, seqlen=24, seqlen_k=40, headdim=16),
    "packed": Case(
        name="c", batch=1, heads=4, kv_heads=2, seqlen=40, seqlens=(9, 30, 1), headdim=16
    ),
}


@pytest.mark.parametrize("case", AXES.values(), ids=AXES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "folder", ["baselines/flash_attn_2", "baselines/flash_attn_3", "baselines/flash_attn_4"]
)
def test_the_axes_that_a_library_claims_reach_it(load, folder, case, causal, monkeypatch):
    library = next(lib for lib in LIBRARIES if lib.folder == folder)
    module = load(folder, files=library.good)
    monkeypatch.setattr(module, "_check_gpu", lambda device: None)
    check_axes(module.custom_attention_forward, case, causal)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("folder", ["baselines/xformers", "baselines/flashinfer"])
def test_more_keys_than_queries_reach_it(load, folder, causal, monkeypatch):
    module = load(folder, files=next(lib for lib in LIBRARIES if lib.folder == folder).good)
    monkeypatch.setattr(module, "_check_gpu", lambda device: None)
    check_axes(module.custom_attention_forward, AXES["more keys"], causal)


@pytest.mark.parametrize("causal", [True, False])
def test_flashinfer_shares_heads_by_views_and_a_launch_for_each_of_the_batch(
    load, causal, monkeypatch
):
    library = next(lib for lib in LIBRARIES if lib.folder.endswith("flashinfer"))
    module = load(library.folder, files=library.good)
    monkeypatch.setattr(module, "_check_gpu", lambda device: None)
    check_axes(module.custom_attention_forward, AXES["shared heads"], causal)
    assert module.flashinfer.PLANS == [(0, 24)]
    wrapper = module.flashinfer.BatchPrefillWithRaggedKVCacheWrapper
    starts = []
    monkeypatch.setattr(wrapper, "run", lambda _, *x, out: starts.append([y.data_ptr() for y in x]))
    q, k, v = (torch.randn(2, heads, 8, 16) for heads in (4, 2, 2))
    module.custom_attention_forward(q, k, v)
    assert starts == [[x[batch].data_ptr() for x in (q, k, v)] for batch in range(2)]


def test_flex_attention_s_mask_is_bottom_right(load):
    mask = load("baselines/flex_attention")._block_mask(128, 256, torch.device("cpu")).mask_mod
    seen = [[bool(mask(0, 0, q, kv)) for kv in (128, 129, 255)] for q in (0, 1, 127)]
    assert seen == [[True, False, False], [True, True, False], [True, True, True]]


@pytest.mark.parametrize("case", AXES.values(), ids=AXES)
@pytest.mark.parametrize("causal", [True, False])
def test_sdpa_answers_every_axis(load, case, causal):
    check_axes(load("baselines/sdpa").custom_attention_forward, case, causal)
    if not case.seqlens:
        check_axes(load("baselines/sdpa_math").custom_attention_forward, case, causal)


def check_axes(forward, case, causal):
    probe = probe_of(case, "normal", causal)
    generator = torch.Generator().manual_seed(0)
    inputs = tensors.make_inputs(probe.case, "normal", generator, torch.device("cpu"), probe.kwargs)
    names = keywords(PROBLEM.inputs(probe.case))
    out = by_name(forward, names)(*inputs, **probe.kwargs)
    want = tensors.exact(inputs, probe.kwargs)[0]
    assert out.shape == want.shape
    assert (out - want).abs().max() < 2e-3


@each_library
def test_inputs_go_in_without_a_copy(load, library, monkeypatch):
    """The library's tensors start at the addresses of q, k and v: views, not copies."""
    module = load(library.folder, files=library.good)
    monkeypatch.setattr(module, "_check_gpu", lambda device: None)
    seen = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def spy(q, k, v, **kwargs):
        seen.extend(x.data_ptr() for x in (q, k, v))
        return attention(q, k, v, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    q, k, v = (torch.randn(2, 3, 24, 16) for _ in range(3))
    module.custom_attention_forward(q, k, v)
    assert seen == [x.data_ptr() for x in (q, k, v)]


@pytest.mark.parametrize("folder", ["baselines/flash_attn_3", "baselines/flash_attn_4"])
def test_a_release_that_also_returns_the_logsumexp_is_understood(load, folder, monkeypatch):
    library = next(lib for lib in LIBRARIES if lib.folder == folder)
    module = load(folder, files=library.good)
    monkeypatch.setattr(module, "_check_gpu", lambda device: None)
    q = torch.randn(1, 2, 8, 16)
    plain = module.custom_attention_forward(q, q, q)
    single = module.flash_attn_func
    monkeypatch.setattr(module, "flash_attn_func", lambda *a, **kw: (single(*a, **kw), None))
    torch.testing.assert_close(module.custom_attention_forward(q, q, q), plain)


def test_flash_attn_4_alone_does_not_pass_for_flash_attn_2(load):
    """Both live in the package flash_attn; version 4 brings flash_attn.cute only."""
    four = next(lib for lib in LIBRARIES if lib.folder.endswith("flash_attn_4"))
    with pytest.raises(ImportError, match="version 2"):
        load("baselines/flash_attn_2", files=four.good)


def test_flashinfer_plans_once_per_shape(load, monkeypatch):
    library = next(lib for lib in LIBRARIES if lib.folder.endswith("flashinfer"))
    module = load(library.folder, files=library.good)
    monkeypatch.setattr(module, "_check_gpu", lambda device: None)
    q = torch.randn(2, 3, 8, 16)
    for _ in range(3):
        module.custom_attention_forward(q, q, q)
    other = torch.randn(1, 1, 8, 16)
    module.custom_attention_forward(other, other, other)
    assert module.flashinfer.PLANS == [(0, 8, 16, 24, 32, 40, 48), (0, 8)]


def test_flex_attention_names_the_torch_it_needs(load):
    with pytest.raises(ImportError, match=r"torch 2\.5 or newer, found .*pip install"):
        load("baselines/flex_attention", files={}, hide=("torch.nn.attention.flex_attention",))


def test_flash_attn_4_keeps_its_compiled_kernels_in_the_private_cache(load, monkeypatch):
    """The library reads both variables when it is imported, so they must be set by then."""
    monkeypatch.setenv("ATTNBOARD_CACHE", "/private/cache")
    for name in ("ENABLED", "DIR"):  # set, then deleted: undone after the test
        monkeypatch.setenv(f"FLASH_ATTENTION_CUTE_DSL_CACHE_{name}", "")
        monkeypatch.delenv(f"FLASH_ATTENTION_CUTE_DSL_CACHE_{name}")
    reads_at_import = """
        import os
        SEEN = (os.environ["FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED"],
                os.environ["FLASH_ATTENTION_CUTE_DSL_CACHE_DIR"])
        flash_attn_func = flash_attn_varlen_func = None
    """
    load("baselines/flash_attn_4", files={"flash_attn/cute/__init__.py": reads_at_import})
    assert sys.modules["flash_attn.cute"].SEEN == ("1", "/private/cache/cute_dsl")


def test_xformers_beside_flash_attn_4_alone_says_what_is_missing(load):
    """xFormers sees a package flash_attn and imports FlashAttention-2's module from it."""
    xformers = next(lib for lib in LIBRARIES if lib.folder.endswith("xformers"))
    four = next(lib for lib in LIBRARIES if lib.folder.endswith("flash_attn_4"))
    needy = {"xformers/ops/__init__.py": "import flash_attn.flash_attn_interface"}
    with pytest.raises(ImportError, match=r"flash-attn-4 .*pip install flash-attn "):
        load(xformers.folder, files=xformers.good | four.good | needy)


XFORMERS_CPP = """
try:
    raise OSError("{said}")
except OSError as cause:
    _cpp_library_load_exception = RuntimeError("built for another PyTorch")
    _cpp_library_load_exception.__cause__ = cause
"""


@pytest.mark.parametrize(
    ("said", "install"),
    [
        ("libcudart.so.12: cannot open shared object file", "pip install nvidia-cuda-runtime-cu12"),
        ("undefined symbol: aoti_torch_x", "built for CUDA .*: pip install xformers"),
    ],
)
def test_xformers_without_its_library_says_what_the_loader_said(load, said, install):
    """It imports without an error then, and answers every call with 'No operator found'."""
    xformers = next(lib for lib in LIBRARIES if lib.folder.endswith("xformers"))
    broken = {
        "xformers/_cpp_lib.py": XFORMERS_CPP.format(said=said),
        "xformers/__init__.py": '__version__ = "0.0.35"\nimport xformers._cpp_lib',
    }
    with pytest.raises(ImportError, match=f"{said}.*{install}"):
        load(xformers.folder, files=xformers.good | broken)


def test_xformers_takes_cuda_12_s_runtime_from_its_package(load, monkeypatch, tmp_path):
    import ctypes

    import torch

    xformers = next(lib for lib in LIBRARIES if lib.folder.endswith("xformers"))
    library = tmp_path / "nvidia" / "cuda_runtime" / "lib" / "libcudart.so.12"
    library.parent.mkdir(parents=True)
    library.touch()
    loaded = []
    monkeypatch.setattr(ctypes, "CDLL", lambda path, *_: loaded.append(path))
    monkeypatch.syspath_prepend(str(tmp_path))
    for version, expected in (("12.8", []), (None, []), ("13.0", [str(library)])):
        monkeypatch.setattr(torch.version, "cuda", version)
        load(xformers.folder, files=xformers.good)
        assert loaded == expected


def test_tlx_s_kernel_is_called_as_it_is_and_without_a_mask(load, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setitem(sys.modules, "triton.language.extra.tlx", ModuleType("tlx"))
    module, asked = load("baselines/tlx_hopper"), []
    monkeypatch.setattr(module, "_check_gpu", lambda device: None)
    kernel = ModuleType("kernel")
    kernel.attention = lambda *args: asked.append(args)
    monkeypatch.setitem(sys.modules, module.KERNEL, kernel)
    q, k, v = (torch.zeros(1, 2, 128, 64) for _ in range(3))
    module.custom_attention_forward(q, k, v, causal=False, sm_scale=None)
    assert asked[0][:3] == (q, k, v)
    assert asked[0][3] == 0.125
    with pytest.raises(NotImplementedError, match="no mask"):
        module.custom_attention_forward(q, k, v, causal=True)


def test_tlx_is_asked_for_by_name_and_refuses_what_its_kernel_is_not_for(load, monkeypatch):
    pytest.importorskip("triton")
    with pytest.raises(ImportError, match=r"fbtriton in the place of triton.*--target ../fbtriton"):
        load("baselines/tlx_hopper", hide=("triton.language.extra.tlx",))
    monkeypatch.setitem(sys.modules, "triton.language.extra.tlx", ModuleType("tlx"))
    module = load("baselines/tlx_hopper")
    with pytest.raises(NotImplementedError, match=r"needs a GPU.*`sdpa`"):
        module._check_gpu(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "New GPU")
    with pytest.raises(NotImplementedError, match=r"New GPU has 10\.0.*`flash_attn_2`"):
        module._check_gpu(torch.device("cuda", 0))
