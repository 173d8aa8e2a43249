"""Raises SystemExit(0) in the call.

---
status: [CRASHED, IMPORT_ERROR, COMPILE_ERROR]
seen: KernelBench-Hard trusted_entrypoint.py
defence: no_sample_no_row
"""


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    raise SystemExit(0)
