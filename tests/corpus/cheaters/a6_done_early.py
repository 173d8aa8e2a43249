"""Says that its outputs are there right after the start, tells times that fit, and computes
afterwards.

---
status: [INCORRECT, NONFINITE, TIME_CLAIM_REJECTED, CRASHED]
needs_gpu: true
seen: foreseen when outputs were no longer copied by the worker
defence: output_sampled
"""

import gc
import sys

import torch
from right_answer import attention

TOLD_MS = 0.12  # a call: below the chip's peak on the shape of the self-test
CYCLES = 420_000  # two calls of it, on a clock of 1.8 GHz


torch.cuda.Event.elapsed_time = lambda self, end: TOLD_MS
BURSTS = []  # one entry each: the judge numbers its turns 1, 2, ...


def the_worker():
    """The object that calls us."""
    return next(x for x in gc.get_objects() if type(x).__name__ == "Worker")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    worker, house = the_worker(), sys.modules["harness.process.cuda.driver"]
    if q.data_ptr() == worker.views[0][0].data_ptr():  # first call of a burst
        BURSTS.append(q)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            house.wait_for_sequence(worker.inputs.flag, len(BURSTS))
            torch.cuda._sleep(CYCLES)
            house.publish_sequence(worker.outputs.flag, len(BURSTS))
    return attention(q, k, v, causal, sm_scale)
