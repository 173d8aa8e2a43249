"""Reads device memory around q, out of bounds, for the reference.

---
status: [INCORRECT, CRASHED, NONFINITE, TIMED_OUT]
needs_gpu: true
seen: pygpubench gpu_scan_zeros; PyTorch's note that IPC exports the whole cudaMalloc block
defence: separate_process
"""

import torch

REACH = 1 << 20


class Raw:
    def __init__(self, address, size):
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    size = q.numel() * q.element_size()
    for tensor in (q, k, v):
        for offset in range(-4 * size, 5 * size, 1024):
            address = tensor.data_ptr() + offset
            if address in (q.data_ptr(), k.data_ptr(), v.data_ptr()):
                continue
            found = torch.as_tensor(Raw(address, size), device="cuda").view(q.dtype).view(q.shape)
            if torch.equal(found[:, :, 0], v[:, :, 0]):
                return found.clone()
    return torch.zeros_like(q)
