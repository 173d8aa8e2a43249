"""Returns one row expanded over all: a tensor with stride 0.

---
status: [BAD_OUTPUT, INCORRECT]
seen: fake geometry; shape broadcasting in torch.allclose
defence: contract
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)[:, :, :1].expand(q.shape)
