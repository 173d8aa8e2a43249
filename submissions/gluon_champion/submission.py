"""Flash attention forward on Hopper: launches attention_kernel.py with what fits each headdim.

Run:     python run.py --submission gluon_champion
"""

import functools
import math

import torch
import triton
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from attention_kernel import ROWS, Tile, attention_kernel  # isort: skip
from schedule import deal  # isort: skip

LOG2_E = 1.4426950408889634
L2_BYTES_FOR_KEYS = 32 << 20  # of 50 MB: the rest is for q, o and what is in flight
LAYOUT = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)

# Measured on one H200, see NOTES.md. Registers a thread: CONSUMERS * 128 consumer threads and 128
# of the producer's group share 65536, which is what the kernel's launch bound divides evenly.
TILES = {
    64: Tile(64, CONSUMERS=4, BLOCK_N=64, STAGES=4, CONSUMER_REGISTERS=112, PRODUCER_REGISTERS=24),
    128: Tile(
        128, CONSUMERS=3, BLOCK_N=64, STAGES=3, CONSUMER_REGISTERS=160, PRODUCER_REGISTERS=32
    ),
    256: Tile(
        256, CONSUMERS=2, BLOCK_N=64, STAGES=2, CONSUMER_REGISTERS=240, PRODUCER_REGISTERS=24
    ),
}
LAUNCH_REGISTERS = {2: 168, 3: 128, 4: 96}  # by number of consumers


@functools.lru_cache(maxsize=256)
def schedule(heads, group, seqlen, headdim, causal, device):
    """int32 table on `device`, see schedule.deal; rows are programs, one for every SM at most."""
    tile = TILES[headdim]
    block_m = tile.CONSUMERS * ROWS.value
    q_tiles = triton.cdiv(seqlen, block_m)
    programs = min(heads * q_tiles, torch.cuda.get_device_properties(device).multi_processor_count)
    head_bytes = 2 * seqlen * headdim * 2  # keys and values of a kv head, 16 bits each
    section = group * max(1, L2_BYTES_FOR_KEYS // head_bytes)
    table = deal(heads, seqlen, block_m, tile.BLOCK_N, causal, section, programs)
    return torch.tensor(table, dtype=torch.int32).to(device), q_tiles


def describe(x, block_rows):
    """TMA descriptor of x [batch, nheads, seqlen, headdim] with tiles [1, block_rows, headdim].

    Three dimensions, so that a tile at the end of a head reads zeros and not the next head.
    """
    batch, nheads, seqlen, headdim = x.shape
    shape = [batch * nheads, seqlen, headdim]
    strides = [seqlen * headdim, headdim, 1]
    return TensorDescriptor(x, shape, strides, [1, block_rows, headdim], LAYOUT)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    """Return softmax(q k^T * sm_scale) v of each head; sm_scale defaults to 1/sqrt(headdim).

    q (batch, nheads, seqlen, headdim), k, v (batch, kv_heads, seqlen, headdim). A view that is not
    contiguous is copied first.

    Raises:
        ValueError: k or v of another length than q, or heads that are no multiple of the kv heads.
    """
    if q.shape[2] != k.shape[2] or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"gluon_champion: q {tuple(q.shape)} over k {tuple(k.shape)}; wanted one length and a "
            "multiple of the kv heads"
        )
    if triton.knobs.runtime.interpret:
        raise NotImplementedError("Gluon has no interpreter: gluon_champion needs a Hopper GPU")
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()  # the kernel knows no strides
    batch, nheads, seqlen, headdim = q.shape
    if sm_scale is None:
        sm_scale = 1.0 / math.sqrt(headdim)
    if sm_scale <= 0:  # the kernel takes the maximum before it scales: the sign goes into q
        q, sm_scale = (-q, -sm_scale) if sm_scale < 0 else (torch.zeros_like(q), 1.0)
    tile = TILES[headdim]
    group = nheads // k.shape[1]
    table, q_tiles = schedule(batch * nheads, group, seqlen, headdim, causal, q.device)
    o = torch.empty_like(q)
    redo = torch.empty(
        batch * nheads * q_tiles * tile.CONSUMERS, dtype=torch.int32, device=q.device
    )
    attention_kernel[(table.shape[0],)](
        describe(q, ROWS.value), describe(k, tile.BLOCK_N), describe(v, tile.BLOCK_N),
        o, table, table.shape[1], redo, sm_scale * LOG2_E, seqlen, q_tiles, group,
        CAUSAL=causal, TILE=tile, num_warps=4, maxnreg=LAUNCH_REGISTERS[tile.CONSUMERS],
    )  # fmt: skip
    return o
