"""Raises an error that calls itself HARNESS_ERROR, so that the failure counts against nobody.

---
status: [INVALID_SUBMISSION, CRASHED]
seen: found in this harness before release
defence: strict_wire
"""

import sys


class NotMyFault(Exception):
    status = None


def blame():
    NotMyFault.status = sys.modules["harness.schema"].Status.HARNESS_ERROR


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    blame()
    raise NotMyFault("the judge is broken")
