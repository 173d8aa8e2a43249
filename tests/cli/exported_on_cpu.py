"""What an exported package does on a CPU, where Triton's interpreter runs its kernels.

    TRITON_INTERPRET=1 python exported_on_cpu.py PACKAGE CHECK...    (PACKAGE lies on PYTHONPATH)

Prints one JSON object: check → "" or what went wrong.
"""

import dataclasses
import importlib
import json
import os
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.library import opcheck
from torch.utils.checkpoint import checkpoint

PACKAGE = importlib.import_module(sys.argv[1])
OPS = getattr(torch.ops, sys.argv[1])
SHAPE = (2, 2, 72, 32)  # a length off the tile
SHORT = (
    2,
    2,
    24,
    32,
)  # for `opcheck`, which calls a kernel again and again and compares it with itself


def draw(shape=SHAPE, dtype=torch.float16, grads=False, strided=False):
    """q, k, v [batch, heads, seqlen, headdim]; strided: as a model has them, heads inside of tokens."""
    generator = torch.Generator().manual_seed(sum(shape))
    batch, heads, seqlen, headdim = shape
    if strided:
        qkv = torch.randn(batch, seqlen, 3, heads, headdim, generator=generator).to(dtype)
        tensors = [t.transpose(1, 2) for t in qkv.unbind(2)]
    else:
        tensors = [torch.randn(shape, generator=generator).to(dtype) for _ in range(3)]
    return [t.detach().requires_grad_(grads) for t in tensors]


def reference(q, k, v, do, causal=True, sm_scale=None):
    """o, dq, dk, dv in float64, from the definition."""
    q, k, v = (t.detach().double().requires_grad_() for t in (q, k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if sm_scale is None else sm_scale)
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    o = scores.softmax(-1) @ v
    return [o, *torch.autograd.grad(o, (q, k, v), do.double())]


def near(found, wanted):
    for name, a, b in zip(("o", "dq", "dk", "dv"), found, wanted, strict=False):
        off = ((a.double() - b).norm() / b.norm()).item()
        assert off < 3e-3, f"{name} is off by {off:.2e}"


def trained(call, **more):
    q, k, v = draw(grads=True, **more)
    o = call(q, k, v)
    do = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).to(o.dtype)
    return [o, *torch.autograd.grad(o, (q, k, v), do)], reference(q, k, v, do)


def where_autocast_is_on(run):
    """Run it; whether autocast is on, each time that a judged function is called."""
    judged, seen = PACKAGE.ops.judged, []
    function = judged.function

    def watched(name):
        seen.append(torch.is_autocast_enabled("cpu"))
        return function(name)

    judged.function = watched
    run()
    judged.function = function
    return seen


def by_the_kernel(call, *args, **kwargs):
    """What `call` gives, which must not fall back."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*PyTorch's own attention.*")
        return call(*args, **kwargs)


def opchecks():
    for strided in (False, True):
        for grads in (False, True):
            opcheck(OPS.attention.default, (*draw(SHORT, grads=grads, strided=strided), True, None))
        q, k, v = draw(SHORT, strided=strided)
        o, lse = OPS.training(q, k, v, False, 0.2)
        opcheck(OPS.inference.default, (q, k, v, False, 0.2))
        opcheck(OPS.training.default, (q, k, v, False, 0.2))
        opcheck(OPS.gradients.default, (torch.randn_like(o), q, k, v, o, lse, False, 0.2))


def gradients():
    for more in ({}, {"strided": True}, {"shape": (1, 3, 130, 64)}):
        near(*by_the_kernel(trained, PACKAGE.attention, **more))


def compiled():
    for backend, dynamic in (("eager", None), ("aot_eager", None), ("aot_eager", True)):
        torch._dynamo.reset()
        call = torch.compile(PACKAGE.attention, fullgraph=True, backend=backend, dynamic=dynamic)
        near(*by_the_kernel(trained, call))
        near(*by_the_kernel(trained, call, shape=(2, 2, 40, 32)))  # another length
        q, k, v = draw(strided=True)
        with torch.no_grad():
            o = by_the_kernel(call, q, k, v)
        near([o], reference(q, k, v, q))


def compiled_without_the_dispatcher():
    """What inductor generates calls the functions behind the operators, forward and backward."""
    from torch._inductor import config
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    call = torch.compile(PACKAGE.attention, fullgraph=True)
    q, k, v = draw()
    with config.patch(force_disable_caches=True):
        found, code = run_and_get_code(lambda: by_the_kernel(trained, call))
        with torch.no_grad():
            o, inference = run_and_get_code(call, q, k, v)
    near(*found)
    near([o], reference(q, k, v, q))
    for name in ("training", "gradients", "inference"):
        called = f"= torch.ops.{sys.argv[1]}.{name}"
        assert [f"{called}_function(" in text for text in code + inference].count(True) == 1, code
        assert not [text for text in code + inference if f"{called}.default(" in text], name


def checkpointed():
    def call(q, k, v):
        return checkpoint(PACKAGE.attention, q, k, v, use_reentrant=False)

    near(*by_the_kernel(trained, call))


def autocast():
    """Inputs are cast; within it a kernel's own products of float32 are what its judge saw."""

    def call(q, k, v):
        with torch.autocast("cpu", dtype=torch.float16):
            o = PACKAGE.attention(q, k, v)
        assert o.dtype == torch.float16
        return o

    def backward_within(call=PACKAGE.attention):
        o = call(*draw(grads=True))
        with torch.autocast("cpu", dtype=torch.float16):
            o.backward(torch.ones_like(o))

    near(*by_the_kernel(trained, call, dtype=torch.float32))
    assert where_autocast_is_on(lambda: call(*draw(grads=True))) == [False]
    assert where_autocast_is_on(backward_within) == [False, False]
    compiled_call = torch.compile(PACKAGE.attention, fullgraph=True)
    assert where_autocast_is_on(lambda: backward_within(compiled_call)) == [False, False]


def own_cache():
    """As in a worker a folder a source: a file of one name is another version's in no package."""
    judged = PACKAGE.ops.judged
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as place:
        os.environ["XDG_CACHE_HOME"] = place
        for name in ("forward", "backward"):
            judged.function.__wrapped__(name)
            folder = Path(os.environ["ATTNBOARD_CACHE"])
            assert folder == Path(place, "attnboard-packages", judged.part(name)["source_sha256"])
            assert folder.is_dir()
    os.environ.clear()
    os.environ.update(before)


def scale_and_mask():
    q, k, v = draw()
    o = by_the_kernel(PACKAGE.attention, q, k, v, causal=False, sm_scale=0.31)
    near([o], reference(q, k, v, q, causal=False, sm_scale=0.31))


def misaligned():
    """The kernels are given what the judge gives them: contiguous, from a multiple of 16 bytes."""
    judged, seen = PACKAGE.ops.judged, []
    function = judged.function

    def watched(name):
        def run(*args, **kwargs):
            tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
            seen.extend(t.is_contiguous() and t.data_ptr() % 16 == 0 for t in tensors)
            return function(name)(*args, **kwargs)

        return run

    flat = torch.randn(3 * 64 * 32 + 1).half()[1:].view(3, 1, 1, 64, 32)
    assert flat.data_ptr() % 16
    judged.function = watched
    near([PACKAGE.attention(*flat)], reference(*flat, flat[0]))
    near(*trained(PACKAGE.attention, strided=True))
    q, k, v = draw(strided=True)
    o, lse = OPS.training(q, k, v, True, 0.2)
    OPS.gradients(o, q, k, v, o, lse, True, 0.2)
    judged.function = function
    assert seen == [True] * (3 + 9 + 9), seen


def second_derivative():
    q, k, v = draw(grads=True)
    (dq,) = torch.autograd.grad(
        PACKAGE.attention(q, k, v).float().pow(2).sum(), q, create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dq.float().sum().backward()


def fallback():
    """Each unsupported call is SDPA's to the bit, and is said once."""
    odd = {
        "headdim 24": draw((1, 2, 8, 24)),
        "torch.float32": draw(dtype=torch.float32),
        "an empty tensor": draw((1, 2, 0, 32)),
        "not (batch": [t[0] for t in draw()],
    }
    for why, (q, k, v) in odd.items():
        for time in range(2):
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                o = PACKAGE.attention(q, k, v, causal=False)
            assert [why in str(w.message) for w in said] == [True] * (time == 0), (why, said)
            sdpa = F.scaled_dot_product_attention(q, k, v, enable_gqa=q.dim() == 4)
            assert torch.equal(o, sdpa), why
    call = torch.compile(PACKAGE.attention, fullgraph=True, backend="aot_eager")
    q, k, v = odd["headdim 24"]
    near([call(q, k, v, False)], reference(q, k, v, q, causal=False))


def causal_ends_with_the_last_key():
    q, (_, k, v) = draw((1, 2, 8, 32))[0], draw((1, 2, 16, 32))
    o = PACKAGE.attention(q, k, v)
    wide = torch.cat([torch.zeros_like(q), q], 2)
    torch.testing.assert_close(o, PACKAGE.attention(wide, k, v)[:, :, 8:], rtol=0, atol=2e-3)
    with pytest.raises(ValueError, match="leaves queries without a key"):
        PACKAGE.attention(k, q, q)


def sdpa_slot():
    assert sys.argv[1] in torch.nn.attention.list_flash_attention_impls()
    assert torch.nn.attention.current_flash_attention_impl() is None
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="no NVIDIA GPU"):
            PACKAGE.enable()
    PACKAGE.disable()


def strided():
    """A part that is exported as one that takes any strides is given views as they are."""
    ops, function, seen = PACKAGE.ops, PACKAGE.ops.judged.function, []

    def watched(name):
        def call(*inputs, **more):
            seen.append((name, inputs[0].is_contiguous()))
            if name == "backward":  # this one takes none
                inputs = (*ops._ready(*inputs[:6]), *inputs[6:])
            return function(name)(*inputs, **more)

        return call

    given = ops.STRIDED, ops.BACKWARD_STRIDED
    ops.judged.function = watched
    for ops.STRIDED, ops.BACKWARD_STRIDED in ((True, False), (True, True)):
        (o, *grads), wanted = trained(PACKAGE.attention, strided=True)
        near([o, *grads], wanted)
        lie = [grad.stride() == o.stride() for grad in grads]
        assert (lie, o.is_contiguous()) == ([ops.BACKWARD_STRIDED] * 3, False)
        calls = len(seen)
        opcheck(OPS.attention.default, (*draw(SHORT, grads=True, strided=True), True, None))
        del seen[calls:]
    q, k, v = draw(strided=True)
    near([PACKAGE.attention(q, k, v)], reference(q, k, v, q))
    ops.judged.function, (ops.STRIDED, ops.BACKWARD_STRIDED) = function, given
    told = [("forward", False), ("backward", True), ("forward", False), ("backward", False)]
    assert (given, seen) == ((False, False), [*told, ("forward", False)])


def what_no_case_had_together():
    """Judged in bf16 at one headdim and in fp16 at another, it took bf16 at both.

    Of grouped heads alone it took equal ones too, which a hidden shape has as seldom.
    """
    PACKAGE.fit._known.clear()
    said = PACKAGE.fit.claims
    on = (9, 0)
    together = ((32, torch.bfloat16, True, 0, on), (64, torch.float16, False, 0, on))
    dtypes = (torch.float16, torch.bfloat16)
    forward = dataclasses.replace(said("forward"), dtypes=dtypes, gqa=True, together=together)
    PACKAGE.fit.claims = {"forward": forward}.get
    for headdim, dtype, heads, taken in (
        (32, torch.bfloat16, 2, True),
        (32, torch.bfloat16, 4, False),
        (64, torch.bfloat16, 4, False),
        (64, torch.float16, 4, True),
        (64, torch.float16, 2, False),
    ):
        q, k = torch.zeros(1, 4, 40, headdim, dtype=dtype), torch.zeros(1, heads, 40, headdim)
        k = k.to(dtype)
        assert (PACKAGE.fit.refusal(q, k, k, True, 0.1, grads=False) == "") is taken
    PACKAGE.fit.claims = said
    PACKAGE.fit._known.clear()


def what_another_gpu_was_judged_for():
    """Judged in bf16 on one GPU and in fp16 on another, it took both on both."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    fit, said, cuda = PACKAGE.fit, PACKAGE.fit.claims, torch.version.cuda
    capability = fit._capability
    dtypes, gpus = (torch.bfloat16, torch.float16), ((8, 0), (9, 0))
    together = tuple((64, dtypes[n], False, False, gpus[n]) for n in (0, 1))
    forward = dataclasses.replace(
        said("forward"), dtypes=dtypes, capabilities=gpus, together=together
    )
    fit.claims, torch.version.cuda = {"forward": forward}.get, "13.0"
    for here, judged in ((0, 0), (0, 1), (1, 0), (1, 1)):
        fit._capability = {0: gpus[here]}.get
        with FakeTensorMode():
            q = torch.empty(1, 4, 40, 64, dtype=dtypes[judged], device="cuda:0")
        why = fit.refusal(q, q, q, True, 0.1, grads=False)
        assert ("never judged together" in why) is (here != judged) is bool(why), why
    unjudged = dataclasses.replace(forward, capabilities=(), together=(), needs=(8, 0))
    fit.claims = {"forward": unjudged}.get
    for gpu in ((7, 5), (8, 0), (8, 9), (10, 0)):
        fit._known.clear()
        fit._capability = {0: gpu}.get
        why = fit.refusal(q, q, q, True, 0.1, grads=False)
        assert ("needs 8.0" in why) is (gpu < (8, 0)) is bool(why), (gpu, why)
    fit.claims, torch.version.cuda, fit._capability = said, cuda, capability
    PACKAGE.fit._known.clear()


def grouped_heads_and_longer_keys():
    """A forward that claims them takes them; a backward that does not leaves both to SDPA."""
    PACKAGE.fit.say_once.cache_clear()
    PACKAGE.fit._known.clear()
    said = PACKAGE.fit.claims
    forward = dataclasses.replace(said("forward"), gqa=True, any_seqlens=True, together=())
    backward = dataclasses.replace(said("backward"), gqa=False, any_seqlens=False)
    PACKAGE.fit.claims = {"forward": forward, "backward": backward}.get
    q, (_, k, v) = draw((1, 4, 40, 32))[0], draw((1, 2, 72, 32))
    with torch.no_grad():
        o = by_the_kernel(PACKAGE.attention, q, k, v)
        q.requires_grad_()
        assert not PACKAGE.fit.refusal(q, k, v, True, 0.1, grads=False)
    wide = [t.repeat_interleave(2, 1) for t in (k, v)]
    seen = torch.cat([torch.zeros(1, 4, 32, 32), q.detach()], 2)
    near([o], [reference(seen, *wide, seen)[0][:, :, 32:]])
    with pytest.warns(UserWarning, match="q has other heads than k and v"):
        again = PACKAGE.attention(q, k, v)
    near([again.detach()], [o.double()])
    PACKAGE.fit.claims = said
    PACKAGE.fit._known.clear()


def in_transformers():
    """A Llama with the kernel and with `sdpa`: losses, gradients, padded batches, new tokens."""
    import transformers

    PACKAGE.register_transformers("judged")
    sizes = {
        "vocab_size": 50,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
    }
    models = {}
    for name in ("sdpa", "judged"):
        torch.manual_seed(0)
        config = transformers.LlamaConfig(**sizes, attn_implementation=name)
        models[name] = transformers.LlamaForCausalLM(config).half()
        assert (config._attn_implementation, config.head_dim) == (name, 32)
    words = torch.randint(1, 50, (2, 24), generator=torch.Generator().manual_seed(0))
    padded = torch.ones_like(words)
    padded[0, :7] = 0

    def both(call):
        return call(models["judged"]), call(models["sdpa"])

    def grads(model):
        model.zero_grad()
        out = model(words, labels=words)
        out.loss.backward()
        weights = [layer.self_attn.k_proj.weight.grad for layer in model.model.layers]
        return [out.logits.detach(), *weights]

    calls = []
    operator = PACKAGE.ops.TRAINING
    PACKAGE.ops.TRAINING = lambda *args: calls.append(args) or operator(*args)
    found, wanted = by_the_kernel(both, grads)
    PACKAGE.ops.TRAINING = operator
    assert len(calls) == 2, f"{len(calls)} calls, two layers"
    near(found, [w.double() for w in wanted])
    with torch.no_grad():
        found, wanted = both(lambda model: model(words, attention_mask=padded).logits[1])
        near([found], [wanted.double()])
        found, wanted = both(lambda model: model(words, attention_mask=padded).logits[0, 7:])
        assert torch.equal(found, wanted), "what has a mask is sdpa's"
        found, wanted = both(lambda m: m.generate(words, max_new_tokens=4, do_sample=False))
    assert torch.equal(found, wanted)


CHECKS = [
    *(opchecks, gradients, compiled, compiled_without_the_dispatcher),
    *(checkpointed, autocast, own_cache, scale_and_mask, misaligned),
    *(
        second_derivative,
        strided,
        fallback,
        what_no_case_had_together,
        what_another_gpu_was_judged_for,
        grouped_heads_and_longer_keys,
        causal_ends_with_the_last_key,
        sdpa_slot,
    ),
    in_transformers,
]


def outcome(check):
    try:
        check()
    except Exception:
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    chosen = [check for check in CHECKS if check.__name__ in sys.argv[2:]]
    print(json.dumps({check.__name__: outcome(check) for check in chosen}))
