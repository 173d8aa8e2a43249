"""Never finishes its import."""

import time

while True:
    time.sleep(1)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return q
