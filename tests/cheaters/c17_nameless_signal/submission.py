"""Ends itself with a real-time signal, which has no name that the engine could look up."""

import os


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    os.kill(os.getpid(), 35)
