"""Softmax in fp16 without subtracting the maximum: overflows on large logits.

---
status: [INCORRECT, NONFINITE]
seen: a shortcut that holds for randn only
defence: stress
"""


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    weights = (q.float() @ k.float().transpose(-1, -2) * scale).exp().half()
    if causal:
        weights = weights.tril()
    return (weights.float() @ v.float() / weights.float().sum(-1, keepdim=True)).to(q.dtype)
