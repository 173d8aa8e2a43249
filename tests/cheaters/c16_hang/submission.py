"""Never returns."""

import time


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    while True:
        time.sleep(1)
