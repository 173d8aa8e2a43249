"""The first call of a burst does the work of all; the rest are look-ups.

---
status: [PASSED, TIME_CLAIM_REJECTED, UNSTABLE]
seen: 'GPU MODE, anatomy of a reward hack (11.191 us on NVFP4); reference-kernels #104'
defence: burst_mean
min_latency_ms: 25
"""

import time

from right_answer import attention

SLOW_S = 0.03  # of one problem
triples = {}  # addresses -> tensors, learnt in earlier bursts
solved = {}  # address of q -> (fingerprint, answer)


def print_of(q, v):
    return (float(q.float().sum()), float(v.float().sum()))


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    key = (q.data_ptr(), causal, sm_scale)
    triples[key] = (q, k, v)
    hit = solved.get(key)
    if hit is not None and hit[0] == print_of(q, v):
        return hit[1]
    for other, (oq, ok, ov) in list(triples.items()):
        time.sleep(SLOW_S)
        solved[other] = (print_of(oq, ov), attention(oq, ok, ov, *other[1:]))
    return solved[key][1]
