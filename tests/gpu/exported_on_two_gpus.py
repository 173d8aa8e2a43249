"""What an exported pair does on the second of two GPUs, and on both: one JSON object, as on one.

python exported_on_two_gpus.py PACKAGE all|CHECK    (PACKAGE lies on PYTHONPATH)
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from exported_on_gpu import PACKAGE, by_the_kernel, draw, near, outcome, reference, trained
from torch.nn.parallel import DistributedDataParallel

HERE, THERE = torch.device("cuda", 0), torch.device("cuda", 1)
STEPS, BATCH, SEQLEN, WIDTH, VOCABULARY = 20, 4, 192, 256, 64


def beside_the_current_card():
    """The tensors' GPU computes, and the same bits as the current one."""
    q, k, v = draw()
    with torch.no_grad():
        here = by_the_kernel(PACKAGE.attention, q, k, v)
        there = by_the_kernel(PACKAGE.attention, *(t.to(THERE) for t in (q, k, v)))
    assert (here.device, there.device, torch.cuda.current_device()) == (HERE, THERE, 0)
    assert torch.equal(here, there.to(HERE))
    near(*by_the_kernel(trained, PACKAGE.attention, device=THERE))
    near(*by_the_kernel(trained, PACKAGE.attention, device=THERE, strided=True))
    near(*by_the_kernel(trained, PACKAGE.attention))
    assert torch.cuda.current_device() == 0


def compiled():
    """One function for both, called from the first: compiled code goes to the GPU of its tensors."""
    torch._dynamo.reset()
    call = torch.compile(PACKAGE.attention, fullgraph=True)
    for device in (THERE, HERE, THERE):
        near(*by_the_kernel(trained, call, device=device))
        q, k, v = draw(device=device)
        with torch.no_grad():
            o = by_the_kernel(call, q, k, v)
        near([o], reference(q, k, v, q))
    assert torch.cuda.current_device() == 0


def cuda_graph():
    """Captured and replayed on the second."""
    with torch.cuda.device(THERE):
        q, k, v = draw(device=THERE)
        PACKAGE.attention(q, k, v)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o = PACKAGE.attention(q, k, v)
    for seed in range(2):
        torch.manual_seed(seed)
        for t in (q, k, v):
            t.copy_(torch.randn_like(t))
        with torch.cuda.device(THERE):
            graph.replay()
        torch.cuda.synchronize(THERE)
        near([o], reference(q, k, v, q))


def streams():
    """Both cards at once, on a stream of each, 50 calls: none waits in the other's queue or counts there."""
    inputs = {device: draw((2, 8, 1024, 128), device=device) for device in (HERE, THERE)}
    wanted = {device: PACKAGE.attention(*inputs[device]) for device in inputs}
    sides = {device: torch.cuda.Stream(device) for device in inputs}
    found = []
    for device in inputs:
        torch.cuda.synchronize(device)
    for _ in range(50):
        for device, side in sides.items():
            with torch.cuda.stream(side):  # makes its card the current one
                found.append((device, PACKAGE.attention(*inputs[device])))
    for device in inputs:
        torch.cuda.synchronize(device)
    assert all(torch.equal(o, wanted[device]) for device, o in found)


class Decoder(torch.nn.Module):
    """One layer of attention between an embedding and a head."""

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.tokens(tokens)
        qkv = self.qkv(self.norm(x)).view(*tokens.shape, 3, WIDTH // 128, 128)
        o = PACKAGE.attention(*(t.transpose(1, 2) for t in qkv.unbind(2)))
        return self.head(x + self.out(o.transpose(1, 2).flatten(2)))


def losses_of(device, rank, ranks):
    """Of each step, a rank's share of the batch alone. A token is three times the one before."""
    torch.manual_seed(0)
    model = Decoder().to(device)
    wrapped = DistributedDataParallel(model, device_ids=[device]) if ranks > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        first = torch.randint(VOCABULARY, (BATCH, 1), generator=generator)
        tokens = ((first + 1) * 3 ** torch.arange(SEQLEN + 1).remainder(16) % VOCABULARY).to(device)
        tokens = tokens[rank::ranks]
        with torch.autocast("cuda", dtype=torch.float16):
            logits = by_the_kernel(wrapped, tokens[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def rank_of(rank, folder):
    """One of two processes, on a card of its own."""
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    store = dist.FileStore(str(Path(folder, "store")), 2)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=2, device_id=device)
    torch.save(losses_of(device, rank, 2), Path(folder, f"{rank}.pt"))
    dist.destroy_process_group()


def data_parallel():
    """DistributedDataParallel through NCCL: the losses of two cards are one card's, and they fall."""
    alone = losses_of(HERE, 0, 1)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_of, (folder,), nprocs=2)
        both = [torch.load(Path(folder, f"{rank}.pt")) for rank in range(2)]
    together = [(a + b) / 2 for a, b in zip(*both, strict=True)]
    off = max(abs(a - b) for a, b in zip(alone, together, strict=True))
    assert off < 5e-3, (off, alone, together)
    assert alone[-1] < 0.7 * alone[0], alone
    assert both[0] != both[1], "the ranks have other tokens"


CHECKS = [beside_the_current_card, compiled, cuda_graph, streams, data_parallel]


if __name__ == "__main__":
    chosen = [check for check in CHECKS if sys.argv[2] in ("all", check.__name__)]
    print(json.dumps({check.__name__: outcome(check) for check in chosen}))
