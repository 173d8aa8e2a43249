"""dq and dk are tensors; dv is a subclass that computes when somebody copies it.

---
status: [BAD_OUTPUT]
seen: 'CUDA-L1 #12; SOL-ExecBench lazy, in the last of three results'
defence: output_type
problem: attention_backward
"""

import torch
from right_answer import gradients


class Later(torch.Tensor):
    job = None

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        def real(x):
            return gradients(*x.job)[2].half() if isinstance(x, Later) else x

        return function(*(real(x) for x in args), **(kwargs or {}))


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None):
    dq, dk, _ = gradients(q, k, v, do, causal, sm_scale)
    dv = torch.Tensor._make_subclass(Later, torch.empty_like(v))
    dv.job = (q, k, v, do, causal, sm_scale)
    return dq.to(q.dtype), dk.to(q.dtype), dv
