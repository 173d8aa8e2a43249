"""Claims bfloat16 too and answers in it.

---
status: [PASSED]
why: bf16 has limits of its own
dtype: bf16
claims:
  headdims: [64, 128, 256]
  causal: both
  dtypes: [fp16, bf16]
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
