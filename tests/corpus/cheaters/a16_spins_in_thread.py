"""A thread launches a spinning kernel some milliseconds after each of its turns.

---
status: [LEFT_WORK_RUNNING]
needs_gpu: true
seen: 'red team of this harness: SIGSTOP stops no kernel'
defence: quiet_gpu
"""

import ctypes
import threading
import time

import torch
import torch.nn.functional as F


def attention(q, k, v, causal, sm_scale):
    """The right answer: q, k, v (batch, heads, seqlen, headdim)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)


SPIN = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 flag)
{
    .reg .u64 %flag;
    .reg .u32 %ended;
    .reg .pred %on;
    ld.param.u64 %flag, [flag];
again:
    ld.volatile.u32 %ended, [%flag];
    setp.eq.u32 %on, %ended, 0;
    @%on bra again;
    ret;
}
"""
ended = torch.ones(1, dtype=torch.int32).pin_memory()  # the kernel's end, in memory of the host
torch.zeros(1, device="cuda")
driver, module, kernel = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
assert driver.cuModuleLoadData(ctypes.byref(module), SPIN) == 0
assert driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"spin") == 0
side = torch.cuda.Stream()


def start_spinning():
    ended[0] = 0
    flag = ctypes.c_uint64(ended.data_ptr())
    arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(flag), ctypes.c_void_p))
    one = [ctypes.c_uint(1)] * 6
    stream = ctypes.c_void_p(side.cuda_stream)
    assert driver.cuLaunchKernel(kernel, *one, ctypes.c_uint(0), stream, arguments, None) == 0


def stop_spinning():
    ended[0] = 1


synchronize, synchronized = torch.cuda.synchronize, threading.Event()
calling = False


def synchronize_and_tell(*_):
    global calling
    stop_spinning()
    synchronize()
    calling = False
    synchronized.set()


def spin_a_moment_later():
    while True:
        synchronized.wait()
        synchronized.clear()
        time.sleep(0.003)
        if not calling:
            start_spinning()


torch.cuda.synchronize = synchronize_and_tell
threading.Thread(target=spin_a_moment_later, daemon=True).start()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global calling
    calling = True
    stop_spinning()
    return attention(q, k, v, causal, sm_scale)
