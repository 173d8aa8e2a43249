"""Runs two halves of the heads on two streams and joins both.

---
status: [PASSED]
needs_gpu: true
why: side streams are fine if they are joined; the counterpart of a1_side_stream
"""

import torch
from right_answer import attention

STREAMS = []


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if not STREAMS:
        STREAMS.extend(torch.cuda.Stream() for _ in range(2))
    here = torch.cuda.current_stream()
    out = torch.empty_like(q)
    half = max(1, q.shape[1] // 2)
    for stream, part in zip(STREAMS, (slice(0, half), slice(half, None)), strict=True):
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            if q[:, part].numel():
                out[:, part] = attention(q[:, part], k[:, part], v[:, part], causal, sm_scale)
        here.wait_stream(stream)
    out.record_stream(here)
    return out
