"""A thread watches the input buffers and starts as soon as they change, before the clock does.

---
status: [TIME_CLAIM_REJECTED, PASSED]
seen: pygpubench README, window of opportunity
defence: idle_before_start
min_latency_ms: 15
"""

import _thread
import time

import torch
from right_answer import attention

SLOW_S = 0.03
jobs = {}  # address of q -> (q, k, v, causal, sm_scale)
ready = {}  # address of q -> (copies of the inputs, answer)


def watch():
    while True:
        for key, job in list(jobs.items()):
            seen = ready.get(key)
            if seen is not None and torch.equal(seen[0], job[0]) and torch.equal(seen[1], job[2]):
                continue
            copies = tuple(tensor.clone() for tensor in job[:3])
            time.sleep(SLOW_S)  # stands for the work
            ready[key] = (copies[0], copies[2], copies[1], attention(*copies, *job[3:]))
        time.sleep(0.0005)


_thread.start_new_thread(watch, ())


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    key = q.data_ptr()
    jobs[key] = (q, k, v, causal, sm_scale)
    seen = ready.get(key)
    while seen is None or not (torch.equal(seen[0], q) and torch.equal(seen[1], v)):
        time.sleep(0.0005)
        seen = ready.get(key)
    return attention(q, k, v, causal, sm_scale)
