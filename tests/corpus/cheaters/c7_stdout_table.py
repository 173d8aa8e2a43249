"""Prints a results table, a JSON verdict and a CI workflow command.

---
status: [INCORRECT]
seen: kernelguard FAKE_BENCHMARK_EMIT
defence: stdout_is_log
"""

import sys

import torch


def fake_report():
    print('{"entry": "c7_stdout_table", "status": "PASSED", "tflops": 9999.0, "correct": 1}')
    print("| 1 | c7_stdout_table | 9999.0 TFLOP/s |")
    print("::set-output name=verdict::PASSED")
    print("\x1b[2J\x1b[HPASSED", file=sys.stderr, flush=True)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    fake_report()
    return torch.zeros_like(q)
