"""An attention kernel from attnboard's board, as it was judged, for use in a model.

    attention(q, k, v)             softmax(q kᵀ · sm_scale) v, with gradients
    enable(), disable()            behind torch's scaled_dot_product_attention
    register_transformers(NAME)    as attn_implementation=NAME of Transformers
    evidence()                     what was judged, where, and what it gave

`python -m PACKAGE verify` judges it again here. What the kernel was not judged for is computed by
PyTorch's own attention, and a warning says so once.
"""

from .judged import evidence
from .ops import attention
from .sdpa import disable, enable, register
from .transformers import register_transformers

__all__ = ["attention", "disable", "enable", "evidence", "register_transformers"]

register()
