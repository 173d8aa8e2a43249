"""What an exported pair does on a GPU: one JSON object, check → "" or what went wrong.

    python exported_on_gpu.py PACKAGE all|CHECK    (PACKAGE lies on PYTHONPATH)

`rank` is one of the processes that the check `processes` starts.
"""

import importlib
import json
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.library import opcheck
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

NAME = sys.argv[1]
PACKAGE = importlib.import_module(NAME)
OPS = getattr(torch.ops, NAME)
SHAPE = (2, 3, 300, 128)  # a length off every tile
TOLERANCE = 2e-3  # relative, of a whole tensor


def draw(shape=SHAPE, dtype=torch.float16, grads=False, strided=False, device="cuda"):
    """q, k, v [batch, heads, seqlen, headdim]; strided: as a model has them, heads inside of tokens."""
    generator = torch.Generator().manual_seed(sum(shape))
    batch, heads, seqlen, headdim = shape
    tokens = torch.randn(batch, seqlen, 3, heads, headdim, generator=generator)
    tensors = [t.transpose(1, 2) for t in tokens.to(device, dtype).unbind(2)]
    tensors = tensors if strided else [t.contiguous() for t in tensors]
    return [t.detach().requires_grad_(grads) for t in tensors]


def reference(q, k, v, do, causal=True):
    """o, dq, dk, dv in float64, from the definition."""
    q, k, v = (t.detach().double().requires_grad_() for t in (q, k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    o = scores.softmax(-1) @ v
    return [o.detach(), *torch.autograd.grad(o, (q, k, v), do.double())]


def near(found, wanted, most=TOLERANCE):
    for name, a, b in zip(("o", "dq", "dk", "dv"), found, wanted, strict=False):
        off = ((a.double() - b).norm() / b.norm()).item()
        assert off < most, f"{name} is off by {off:.2e}"


def trained(call, dtype=torch.float16, **more):
    """o, dq, dk, dv by `call`, and what they should be."""
    q, k, v = draw(grads=True, dtype=dtype, **more)
    o = call(q, k, v)
    do = draw(q.shape, device=q.device)[0].to(o.dtype)
    return [o.detach(), *torch.autograd.grad(o, (q, k, v), do)], reference(q, k, v, do)


def by_the_kernel(call, *args, **kwargs):
    """What `call` gives, which must not fall back."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*PyTorch's own attention.*")
        return call(*args, **kwargs)


def opchecks():
    close = {"rtol": 1e-2, "atol": 1e-2}  # dq may be summed in another order
    for strided in (False, True):
        for grads in (False, True):
            tensors = draw(grads=grads, strided=strided)
            opcheck(OPS.attention.default, (*tensors, True, None), **close)
        q, k, v = draw(strided=strided)
        o, lse = OPS.training(q, k, v, False, 0.1)
        opcheck(OPS.inference.default, (q, k, v, False, 0.1))
        opcheck(OPS.training.default, (q, k, v, False, 0.1))
        do = torch.randn_like(o)
        opcheck(OPS.gradients.default, (do, q, k, v, o, lse, False, 0.1), **close)


def gradients():
    for shape in (SHAPE, (1, 4, 1000, 64)):
        for strided in (False, True):
            near(*by_the_kernel(trained, PACKAGE.attention, shape=shape, strided=strided))


def compiled():
    torch._dynamo.reset()
    call = torch.compile(PACKAGE.attention, fullgraph=True)
    near(*by_the_kernel(trained, call))
    near(*by_the_kernel(trained, call, strided=True))
    near(*by_the_kernel(trained, call, shape=(2, 3, 412, 128)))  # another length
    for strided in (False, True, False):  # the second call and the third: the forward itself
        q, k, v = draw(strided=strided)
        with torch.no_grad():
            o = by_the_kernel(call, q, k, v)
        near([o], reference(q, k, v, q))
        assert o.stride() == torch.empty_like(q).stride()


def compiled_model():
    """A layer with its projections, where the compiler chooses the layouts."""
    torch.manual_seed(0)
    qkv, out = (torch.nn.Linear(256, n, device="cuda", dtype=torch.float16) for n in (768, 256))
    x = torch.randn(2, 320, 256, device="cuda", dtype=torch.float16, requires_grad=True)

    def layer(x):
        q, k, v = (t.transpose(1, 2) for t in qkv(x).view(2, 320, 3, 2, 128).unbind(2))
        o = PACKAGE.attention(q, k, v)
        return out(o.transpose(1, 2).reshape(2, 320, 256))

    def grads(call):
        o = call(x)
        return [o.detach(), *torch.autograd.grad(o.float().square().sum(), (x, qkv.weight))]

    wanted = grads(layer)
    near(
        by_the_kernel(grads, torch.compile(layer, fullgraph=True)),
        [w.double() for w in wanted],
        5e-3,
    )
    reduced = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
    for _ in range(3):  # warm, captured, replayed
        torch.compiler.cudagraph_mark_step_begin()
        near(by_the_kernel(grads, reduced), [w.double() for w in wanted], 5e-3)


def cuda_graph():
    """A forward and a backward are captured once and replayed on other inputs."""
    q, k, v = draw(grads=True)
    do = torch.randn_like(q)

    def step():
        o = PACKAGE.attention(q, k, v)
        return [o, *torch.autograd.grad(o, (q, k, v), do)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    for seed in range(2):
        torch.manual_seed(seed)
        with torch.no_grad():
            for t in (q, k, v, do):
                t.copy_(torch.randn_like(t))
        graph.replay()
        torch.cuda.synchronize()
        near([r.detach() for r in results], reference(q, k, v, do))


def checkpointed():
    def call(q, k, v):
        return checkpoint(PACKAGE.attention, q, k, v, use_reentrant=False)

    near(*by_the_kernel(trained, call))


def autocast():
    def call(q, k, v):
        with torch.autocast("cuda", dtype=torch.float16):
            o = PACKAGE.attention(q, k, v)
        assert o.dtype == torch.float16
        return o

    near(*by_the_kernel(trained, call, dtype=torch.float32))


def flash(q, k, v, **more):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, **more)


def kernels_of(call):
    with profile(activities=[ProfilerActivity.CUDA]) as told:
        call()
        torch.cuda.synchronize()
    return {event.key for event in told.key_averages()}


def sdpa_slot():
    """enable(): SDPA gives the package's bits where it fits and PyTorch's where not; disable() ends it."""
    q, k, v = draw(strided=True)
    odd = draw((1, 2, 64, 96))
    own, other, dropped = PACKAGE.attention(q, k, v), flash(q, k, v), flash(*odd)
    order = torch._C._get_sdp_priority_order()
    PACKAGE.enable()
    try:
        assert torch.nn.attention.current_flash_attention_impl() == NAME
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        near([found], [own.double()], 1e-4)
        assert found.stride() == other.stride()
        launched = kernels_of(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
        assert launched >= kernels_of(lambda: PACKAGE.attention(q, k, v)), launched
        assert torch.equal(flash(*odd), dropped)

        def sdpa(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        near(*by_the_kernel(trained, sdpa))
        near(*by_the_kernel(trained, sdpa, strided=True))
        torch._dynamo.reset()
        near(*by_the_kernel(trained, torch.compile(sdpa, fullgraph=True), strided=True))
        o = flash(*draw(grads=True), dropout_p=0.5)
        o.sum().backward()  # forward and backward by PyTorch
        causal_less = F.scaled_dot_product_attention(q, k, v)
        near([causal_less], reference(q, k, v, q, causal=False))
    finally:
        PACKAGE.disable()
    assert torch.equal(flash(q, k, v), other)
    assert torch._C._get_sdp_priority_order() == order
    assert torch.nn.attention.current_flash_attention_impl() is None


def fallback():
    """What was not judged is SDPA's, to the bit, and said once."""
    bf16 = "bf16" in PACKAGE.evidence()["forward"]["claims"]["dtypes"]
    odd = {
        "torch.float32": draw(dtype=torch.float32),
        **({} if bf16 else {"torch.bfloat16": draw(dtype=torch.bfloat16)}),
        "headdim 96": draw((1, 2, 64, 96)),
        "tensors on a CPU": draw(device="cpu"),
        "an empty tensor": draw((1, 2, 0, 64)),
    }
    for why, (q, k, v) in odd.items():
        with pytest.warns(UserWarning, match=why):
            o = PACKAGE.attention(q, k, v)
        wanted = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        assert torch.equal(o, wanted), why
        assert torch.equal(by_the_kernel(PACKAGE.attention, q, k, v), wanted), f"{why}: said twice"


def huge():
    """2^31 elements are PyTorch's; half a million fewer are the kernel's, to the last head."""
    q = torch.randn(2048, 64, 256, 64, device="cuda", dtype=torch.float16)
    assert q.numel() == 1 << 31
    with pytest.warns(UserWarning, match="more than 2147483647 elements"):
        o = PACKAGE.attention(q, q, q)
    near([o[-1:]], reference(q[-1:], q[-1:], q[-1:], q[-1:]))
    del o
    q = q[:-1]
    o = by_the_kernel(PACKAGE.attention, q, q, q)
    near([o[-1:]], reference(q[-1:], q[-1:], q[-1:], q[-1:]))


def streams():
    """Two streams at once, 50 calls each."""
    q, k, v = draw((2, 8, 1024, 128))
    wanted = PACKAGE.attention(q, k, v)
    found = []
    torch.cuda.synchronize()
    sides = [torch.cuda.Stream(), torch.cuda.Stream()]
    for _ in range(50):
        for side in sides:
            with torch.cuda.stream(side):
                found.append(PACKAGE.attention(q, k, v))
    torch.cuda.synchronize()
    assert all(torch.equal(o, wanted) for o in found)


def processes():
    """Two ranks of DistributedDataParallel on one card: the mean gradient."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, NAME, "rank", str(rank), folder],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(2)
        ]
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], said
        both = [torch.load(Path(folder, f"{rank}.pt")) for rank in range(2)]
        assert torch.equal(both[0]["mean"], both[1]["mean"])
        mean = (both[0]["own"] + both[1]["own"]) / 2
        near([both[0]["mean"]], [mean.double()], 1e-3)


def rank_of(rank, folder):
    import torch.distributed as dist

    device = torch.device("cuda", 0)
    store = dist.FileStore(str(Path(folder, "store")), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.manual_seed(0)

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = torch.nn.Linear(128, 384)

        def forward(self, x):
            q, k, v = (t.transpose(1, 2) for t in self.qkv(x).view(2, 256, 3, 1, 128).unbind(2))
            return PACKAGE.attention(q, k, v)

    layer = Layer().to(device)
    x = torch.randn(2, 256, 128, device=device) + rank
    found = {}
    for name, wrap in (("own", lambda it: it), ("mean", torch.nn.parallel.DistributedDataParallel)):
        layer.zero_grad()
        model = wrap(layer)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = by_the_kernel(model, x).float().square().mean()
        loss.backward()
        found[name] = layer.qkv.weight.grad.detach().cpu().clone()
    torch.save(found, Path(folder, f"{rank}.pt"))
    dist.destroy_process_group()


CHECKS = [
    *(gradients, opchecks, compiled, compiled_model, cuda_graph, checkpointed, autocast),
    *(fallback, sdpa_slot, streams, processes, huge),  # in this order: a reason is said once
]


def outcome(check):
    start, fault = time.monotonic(), ""
    try:
        check()
    except (Exception, pytest.fail.Exception):
        fault = traceback.format_exc()
    said = "failed" if fault else "passed"
    print(f"{check.__name__} {said}, {time.monotonic() - start:.1f} s", file=sys.stderr)
    return fault


if __name__ == "__main__":
    if sys.argv[2] == "rank":
        rank_of(int(sys.argv[3]), sys.argv[4])
        sys.exit()
    chosen = [check for check in CHECKS if sys.argv[2] in ("all", check.__name__)]
    print(json.dumps({check.__name__: outcome(check) for check in chosen}))
