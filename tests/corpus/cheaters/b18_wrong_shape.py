"""Returns the answer with batch and heads swapped, which would broadcast.

---
status: [BAD_OUTPUT]
seen: fake geometry; shape broadcasting in torch.allclose
defence: output_type
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale).transpose(0, 1)[:, :1]
