"""A small decoder trained with PyTorch's attention and with an exported kernel: losses, times, memory.

    python run.py export cuda_hopper --backward cuda_hopper_backward --to out && pip install ./out
    python examples/train_tiny_transformer.py --package attnboard_cuda_hopper
    TRITON_INTERPRET=1 python examples/train_tiny_transformer.py --quick --package PACKAGE   (a CPU)

Weights are random, and the tokens follow a rule that can be learnt. Every run of a headdim starts
from the same weights and sees the same tokens. `off` is how far the losses go from those of a run
whose attention is computed in float32, at most in any step.

How far may they go? `nudged` are runs of PyTorch's from weights that were moved by half a rounding
of float16, this way or that: what rounding alone does. The spread is the largest distance between
the losses of two of PyTorch's own runs (its default, each backend, the nudged ones): in the mean of
the steps, and in the worst step. A kernel's losses are PyTorch's if they are no further from the
default's than that, by both.

`skipped` counts the steps that the loss scaler left out, because a gradient was not finite.
`attention` is the part of a step that goes when every head returns its v: copies are counted.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
FLOAT32 = "float32 attention"
SCALE = 1024.0
NUDGE = 2.0**-12  # half of the distance between float16 numbers, relative
NUDGED = ("sdpa", "sdpa, flash")  # runs of which there are nudged ones
SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Size:
    """Of the model and of what it is trained on."""

    layers: int
    width: int
    vocabulary: int
    batch: int
    seqlen: int
    steps: int


FULL = Size(layers=4, width=1024, vocabulary=8192, batch=2, seqlen=8192, steps=50)
QUICK = Size(layers=1, width=64, vocabulary=32, batch=2, seqlen=40, steps=4)


class Block(nn.Module):
    """Causal attention and a feed-forward layer, each after a norm."""

    def __init__(self, width: int, headdim: int) -> None:
        super().__init__()
        self.headdim = headdim
        self.norm, self.norm_after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, attention: Attention) -> torch.Tensor:
        """[batch, seqlen, width] → the same."""
        batch, seqlen, width = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, seqlen, 3, width // self.headdim, self.headdim)
        o = attention(
            *(t.transpose(1, 2) for t in qkv.unbind(2))
        )  # [batch, heads, seqlen, headdim]
        x = x + self.out(o.transpose(1, 2).reshape(batch, seqlen, width))
        return x + self.down(F.gelu(self.up(self.norm_after(x))))


class Decoder(nn.Module):
    """Tokens → logits of the next."""

    def __init__(self, size: Size, headdim: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.places = nn.Embedding(size.seqlen, size.width)
        self.blocks = nn.ModuleList(Block(size.width, headdim) for _ in range(size.layers))
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, size.vocabulary)

    def forward(self, tokens: torch.Tensor, attention: Attention) -> torch.Tensor:
        """Tokens [batch, seqlen] → logits [batch, seqlen, vocabulary]."""
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, attention)
        return self.head(self.norm(x))


def draw_tokens(size: Size, step: int) -> torch.Tensor:
    """[batch, seqlen + 1]: the first, third, … are drawn, each of the others follows from the one before."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(size.vocabulary, (size.batch, size.seqlen + 2), generator=generator)
    tokens[:, 1::2] = (5 * tokens[:, ::2] + 7) % size.vocabulary
    return tokens[:, : size.seqlen + 1]


@dataclass(frozen=True)
class Outcome:
    """Of one training run."""

    losses: list[float]
    step_ms: float
    prefill_ms: float
    memory_gib: float
    skipped: int  # steps


class Clock:
    """Milliseconds between calls, on the GPU's clock where there is one."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.marks: list[torch.cuda.Event | float] = []

    def mark(self) -> None:
        """A point in time behind all that was queued."""
        if self.device == "cpu":
            self.marks.append(time.perf_counter())
        else:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)

    def median_ms(self) -> float:
        """Of the later half of the stretches between marks."""
        if self.device == "cpu":
            stretches = [1e3 * (b - a) for a, b in zip(self.marks, self.marks[1:], strict=False)]
        else:
            torch.cuda.synchronize()
            stretches = [
                a.elapsed_time(b) for a, b in zip(self.marks, self.marks[1:], strict=False)
            ]
        return statistics.median(stretches[len(stretches) // 2 :])


def train(
    size: Size, headdim: int, device: str, attention: Attention, data: list[torch.Tensor],
    nudged: int = 0,
) -> Outcome:  # fmt: skip
    """Train from the same weights, but for a nudge by that seed; then time a prefill."""
    torch.manual_seed(0)
    model = Decoder(size, headdim).to(device)
    if nudged:
        torch.manual_seed(nudged)
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1 + NUDGE * torch.sign(torch.randn_like(weight)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device != "cpu")
    scaler = torch.amp.GradScaler(device, init_scale=SCALE)  # halved at each step that it skips
    losses, clock = [], Clock(device)
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    for tokens in data:
        clock.mark()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(tokens[:, :-1], attention)
            loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.detach())
    clock.mark()
    peak = torch.cuda.max_memory_allocated() / 2**30 if device != "cpu" else 0.0
    prefill = Clock(device)
    with torch.inference_mode(), torch.autocast(device, dtype=torch.float16):
        for tokens in data[:10]:
            prefill.mark()
            model(tokens[:, :-1], attention)
        prefill.mark()
    told = [float(loss) for loss in losses]
    skipped = round(math.log2(SCALE / scaler.get_scale()))
    return Outcome(told, clock.median_ms(), prefill.median_ms(), peak, skipped)


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """As a model calls it; PyTorch picks the backend."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def in_float32(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Rounded to the dtype of q once, at the end; so are the gradients."""
    with torch.autocast(q.device.type, enabled=False):
        return sdpa(q.float(), k.float(), v.float()).to(q.dtype)


def backends() -> dict[str, Attention]:
    """Each of PyTorch's own that takes these tensors."""

    def only(backend: SDPBackend) -> Attention:
        return sdpa_kernel(backend)(sdpa)

    names = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION")
    return {f"sdpa, {name[:-10].lower()}": only(getattr(SDPBackend, name)) for name in names}


def taken_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """No attention at all; q and k keep their gradients."""
    return v + 0 * (q[..., :1] + k[..., :1])


def flash_attn_3() -> Attention | None:
    """FlashAttention-3, if it is installed: it takes (batch, seqlen, heads, headdim)."""
    try:
        from flash_attn_interface import flash_attn_func
    except ImportError:
        return None

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        told = flash_attn_func(*(t.transpose(1, 2) for t in (q, k, v)), causal=True)
        o = told[0] if isinstance(told, tuple) else told
        return o.transpose(1, 2)

    return attention


@contextlib.contextmanager
def behind_sdpa(package: object) -> Iterator[None]:
    """F.scaled_dot_product_attention is the package's."""
    package.enable()
    try:
        yield
    finally:
        package.disable()


def compare(size: Size, headdim: int, device: str, package: object) -> None:
    """Train with every attention there is and print a table."""
    data = [draw_tokens(size, step).to(device) for step in range(size.steps)]

    def run(name: str, attention: Attention, nudged: int = 0) -> Outcome:
        found = train(size, headdim, device, attention, data, nudged)
        print(
            f"  {name}: {found.step_ms:.2f} ms a step, last loss {found.losses[-1]:.4f}",
            file=sys.stderr,
        )
        return found

    own = {"sdpa": sdpa} | (backends() if device != "cpu" else {})
    third = flash_attn_3() if device != "cpu" else None
    others = {"flash_attn_3": third} if third else {}
    if package:
        others[package.__name__] = package.attention
    for attention in (in_float32, *own.values(), *others.values()):
        train(size, headdim, device, attention, data[:3])  # compiles, tunes
    found = {name: run(name, each) for name, each in ({FLOAT32: in_float32} | own).items()}
    for name, seed in itertools.product(filter(own.get, NUDGED), SEEDS):
        told = f"{name}, nudged {seed}"
        found[told] = run(told, own[name], seed)
    of_pytorch = [name for name in found if name != FLOAT32]
    found |= {name: run(name, each) for name, each in others.items()}
    if package and device != "cpu":
        with behind_sdpa(package):
            name = f"{package.__name__}, by enable()"
            found[name] = run(name, sdpa)
    print_table(size, headdim, found, rest=run("no attention", taken_out))
    print_verdict(found, of_pytorch)


def print_table(size: Size, headdim: int, found: dict[str, Outcome], rest: Outcome) -> None:
    """A line for each attention; `rest`: without any."""
    print(
        f"headdim {headdim}: {size.layers} layers of {size.width // headdim} heads, {size.batch} x "
        f"{size.seqlen} tokens, {size.steps} steps, float16 autocast"
    )
    print(
        "| attention | step ms | tokens/s | attention ms | share | prefill ms | GiB | skipped "
        "| last loss | off |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    base = found[FLOAT32]
    for name, each in found.items():
        part_ms = each.step_ms - rest.step_ms
        tokens = size.batch * size.seqlen / each.step_ms * 1e3
        off = distance(each, base)
        print(
            f"| {name} | {each.step_ms:.2f} | {tokens:,.0f} | {part_ms:.2f} | {part_ms / each.step_ms:.0%} "
            f"| {each.prefill_ms:.2f} | {each.memory_gib:.2f} | {each.skipped} "
            f"| {each.losses[-1]:.4f} | {off:.1e} |"
        )
    print(f"first loss {base.losses[0]:.4f}; off: the largest distance to {FLOAT32}'s in any step")


def print_verdict(found: dict[str, Outcome], of_pytorch: list[str]) -> None:
    """Whether each of the others' losses is PyTorch's, by how far those of PyTorch's own lie apart."""
    pairs = [(found[a], found[b]) for a, b in itertools.combinations(of_pytorch, 2)]
    spread, widest = (max(measure(*pair) for pair in pairs) for measure in (mean, distance))
    print(f"spread of PyTorch's own {len(of_pytorch)}: mean {spread:.1e}, worst step {widest:.1e}")
    for name in list(found)[1 + len(of_pytorch) :]:
        apart, worst = (measure(found[name], found["sdpa"]) for measure in (mean, distance))
        word = "within" if apart <= spread and worst <= widest else "beyond"
        print(f"{name}: mean {apart:.1e}, worst step {worst:.1e} from sdpa: {word}")
    print()


def mean(one: Outcome, other: Outcome) -> float:
    """The distance between their losses, in the mean of the steps."""
    return statistics.mean(abs(a - b) for a, b in zip(one.losses, other.losses, strict=True))


def distance(one: Outcome, other: Outcome) -> float:
    """The largest between their losses in any step."""
    return max(abs(a - b) for a, b in zip(one.losses, other.losses, strict=True))


def main() -> None:
    """Parse, and compare at every headdim."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--package", help="an exported package that can be imported")
    parser.add_argument("--quick", action="store_true", help="a tiny size, on the CPU")
    parser.add_argument("--headdim", type=int, nargs="+", help="default: 64 128; with --quick 32")
    args = parser.parse_args()
    device = "cpu" if args.quick or not torch.cuda.is_available() else "cuda"
    size = QUICK if device == "cpu" else FULL
    package = importlib.import_module(args.package) if args.package else None
    if device == "cuda":
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for headdim in args.headdim or ([32] if device == "cpu" else [64, 128]):
        compare(size, headdim, device, package)


if __name__ == "__main__":
    main()
