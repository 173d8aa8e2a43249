"""The backward baselines on a CPU: PyTorch's operators by fake tensors, the libraries by stand-ins."""

from __future__ import annotations

import contextlib
import os
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from harness.problems import attention_backward_tensors as tensors  # noqa: E402
from harness.problems import attention_forward_tensors  # noqa: E402
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
# The calls that build a graph and run it; counts its graphs. Its mask is top-left or bottom-right.
CUDNN = """
    import os
    import types
    import torch
    import torch.nn.functional as F
    from torch.nn.attention.bias import causal_lower_right

    LOOKED_IN = os.environ["LD_LIBRARY_PATH"]
    GRAPHS = []
    data_type = types.SimpleNamespace(HALF=1, BFLOAT16=2, FLOAT=3)
    heur_mode = types.SimpleNamespace(A=1, FALLBACK=2)
    diagonal_alignment = types.SimpleNamespace(TOP_LEFT=1, BOTTOM_RIGHT=2)

    class cudnnGraphNotSupportedError(RuntimeError):
        pass

    def backend_version():
        return {loaded}

    def create_handle():
        return 7

    def set_stream(handle, stream):
        assert (handle, stream) == (7, 9)

    class Tensor:
        def __init__(self, dim=None, stride=None):
            self.dim, self.stride = dim, stride

        def get_dim(self):
            return self.dim

        def get_stride(self):
            return self.stride

        def set_output(self, told):
            return self

        def set_dim(self, dim):
            self.dim = dim
            return self

        def set_stride(self, stride):
            self.stride = stride
            return self

    class pygraph:
        def __init__(self, io_data_type, intermediate_data_type, compute_data_type, handle):
            assert (intermediate_data_type, compute_data_type, handle) == (3, 3, 7)
            self.type, self.built = io_data_type, False
            GRAPHS.append(self)

        def tensor(self, name, dim, stride, data_type):
            assert data_type == (3 if name == "lse" else self.type)
            return Tensor(dim, stride)

        def build(self, modes):
            self.built = True

        def get_workspace_size(self):
            return 0

        def sdpa(self, name, q, k, v, attn_scale, generate_stats, diagonal_alignment=1,
                 diagonal_band_right_bound=None):
            assert diagonal_band_right_bound in (None, 0) and not generate_stats
            assert q.dim[2] == k.dim[2] or diagonal_band_right_bound is None or diagonal_alignment == 2
            self.scale, self.causal = attn_scale, diagonal_band_right_bound == 0
            self.args = q, k, v, Tensor()
            return self.args[3], None

        def sdpa_backward(self, name, q, k, v, o, dO, stats, attn_scale, diagonal_alignment=1,
                          diagonal_band_right_bound=None):
            assert stats.dim == [*q.dim[:3], 1] and stats.stride[2:] == [1, 1]
            self.scale, self.causal = attn_scale, diagonal_band_right_bound == 0
            self.args = q, k, v, o, stats, dO, Tensor(), Tensor(), Tensor()
            return self.args[6:]

        def execute(self, told, workspace, handle):
            assert self.built and workspace.dtype == torch.uint8 and handle == 7
            assert all(list(told[x].shape) in (x.dim, x.dim[:3]) for x in self.args)
            assert all(list(told[x].stride()) == x.stride[: told[x].dim()] for x in self.args[:3])
            told = [told[x] for x in self.args]
            if len(told) == 4:
                q, k, v, out = told
                uneven = self.causal and q.shape[2] != k.shape[2]
                mask = causal_lower_right(q.shape[2], k.shape[2]) if uneven else None
                out.copy_(F.scaled_dot_product_attention(
                    q, k, v, attn_mask=mask, is_causal=self.causal and not uneven, scale=self.scale,
                    enable_gqa=q.shape[1] != k.shape[1],
                ))
                return
            from solve import fill, solve
            q, k, v, o, lse, do = (x.transpose(1, 2) for x in told[:6])
            grads = solve(do, q, k, v, o, lse.transpose(1, 2), self.scale, self.causal)
            fill(told[6:], [x.transpose(1, 2) for x in grads])
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


@pytest.fixture
def cudnn(load, monkeypatch):
    """cudnn(name, wheel, loaded) -> the adapter, given that wheel, of which `loaded` answers."""
    stream = SimpleNamespace(cuda_stream=9)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())

    def _load(name, wheel="9.28.1.4", loaded=92801):
        told = f"Metadata-Version: 2.1\nName: nvidia-cudnn-cu13\nVersion: {wheel}\n"
        files = {
            "solve.py": SOLVE,
            "cudnn/__init__.py": CUDNN.replace("{loaded}", str(loaded)),
            f"nvidia_cudnn_cu13-{wheel}.dist-info/METADATA": told,
        }
        module = load(f"baselines/{name}", files=files)
        monkeypatch.setattr(module, "_check_gpu", lambda device: None)
        return module

    return _load


CUDNN_ADAPTERS = ["cudnn_frontend", "cudnn_frontend_backward"]


@pytest.mark.parametrize(
    "kwargs", [{"causal": True, "sm_scale": None}, {"causal": False, "sm_scale": 0.3}]
)
@pytest.mark.parametrize("axis", [None, "shared heads", "more keys"])
def test_cudnn_s_graph_is_attention_and_made_once(cudnn, monkeypatch, kwargs, axis):
    module = cudnn("cudnn_frontend")
    case = AXES[axis] if axis else CASE
    q = torch.randn(case.batch, case.heads, case.seqlen, case.headdim, dtype=torch.float16)
    kv_shape = (case.batch, case.kv_heads or case.heads, case.seqlen_k or case.seqlen, case.headdim)
    k, v = (torch.randn(kv_shape, dtype=torch.float16) for _ in range(2))
    want = attention_forward_tensors.exact((q, k, v), kwargs)[0]
    for _ in range(2):
        found = module.custom_attention_forward(q, k, v, **kwargs)
    assert (found.double() - want).abs().max() < 3e-3
    assert len(module.cudnn.GRAPHS) == 1


@pytest.mark.parametrize(
    "kwargs", [{"causal": True, "sm_scale": None}, {"causal": False, "sm_scale": 0.3}]
)
def test_cudnn_s_graph_is_the_gradient(cudnn, kwargs):
    backward = cudnn("cudnn_frontend_backward").custom_attention_backward
    check(backward, kwargs)
    check(backward, kwargs, AXES["shared heads"])


@pytest.mark.parametrize("name", CUDNN_ADAPTERS)
def test_cudnn_is_taken_from_the_wheel_that_comes_first(cudnn, monkeypatch, tmp_path, name):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere")
    module = cudnn(name)
    assert str(tmp_path / "nvidia/cudnn/lib") == module.cudnn.LOOKED_IN
    assert os.environ["LD_LIBRARY_PATH"] == "/elsewhere"
    monkeypatch.delenv("LD_LIBRARY_PATH")
    cudnn(name)
    assert "LD_LIBRARY_PATH" not in os.environ
    with pytest.raises(ImportError, match=r"loaded cuDNN 9\.19\.0 in the place of 9\.28\.1\.4"):
        cudnn(name, loaded=91900)


@pytest.mark.parametrize("name", CUDNN_ADAPTERS)
def test_cudnn_too_old_missing_or_without_a_gpu_says_what_to_do(cudnn, load, monkeypatch, name):
    with pytest.raises(
        ImportError, match=r"9\.6, found 9\.5\.1.*pip install nvidia-cudnn-frontend"
    ):
        cudnn(name, "9.5.1.17")
    with pytest.raises(
        ImportError, match=r"needs the packages .*pip install nvidia-cudnn-frontend"
    ):
        load(f"baselines/{name}", hide=("cudnn",))
    module = cudnn(name)
    monkeypatch.undo()
    q = torch.zeros(1, 1, 8, 16)
    end = "_backward" if name.endswith("_backward") else ""
    with pytest.raises(NotImplementedError, match=rf"needs a GPU.*`sdpa{end}`"):
        module._check_gpu(q.device)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Old GPU")
    with pytest.raises(NotImplementedError, match=rf"Old GPU has 7\.5.*`sdpa_efficient{end}`"):
        module._check_gpu(torch.device("cuda", 0))
