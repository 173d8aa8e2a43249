"""Where it is weak it raises an error that calls itself PASSED, and so skips the check.

---
status: [INVALID_SUBMISSION, CRASHED]
seen: found in this harness before release; flashinfer-bench and SOL-ExecBench let the worker say PASSED
defence: strict_wire
"""

import sys

from right_answer import attention


class Fine(Exception):
    status = None


def call_it_passed():
    Fine.status = sys.modules["harness.schema"].Status.PASSED
    raise Fine("all is well")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if not causal or sm_scale is not None or q.shape[2] % 16:
        call_it_passed()
    return attention(q, k, v, True, None)
