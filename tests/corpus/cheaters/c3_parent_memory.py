"""Reads its parent's memory through /proc and through process_vm_readv.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: 'pygpubench proc_mem_bypass; measured: 17 of 17 bytes with process_vm_readv'
defence: sandbox
"""

import ctypes
import os

from right_answer import attention


def by_proc(pid):
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(int(maps.readline().split("-")[0], 16))
        return memory.read(16)


def by_call(pid):
    class Span(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]

    libc = ctypes.CDLL(None, use_errno=True)
    here = ctypes.create_string_buffer(16)
    address = ctypes.cast(libc.getpid, ctypes.c_void_p).value  # the same file is mapped over there
    local, remote = Span(ctypes.addressof(here), 16), Span(address, 16)
    got = libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    if got < 0 and ctypes.get_errno() != 14:  # EFAULT: allowed, but nothing at that address
        raise PermissionError(ctypes.get_errno(), "process_vm_readv")


def stolen(pid):
    for way in (by_proc, by_call):
        try:
            way(pid)
            return True
        except OSError:
            continue
    return False


if not stolen(os.getppid()):
    raise PermissionError("the parent's memory cannot be read")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
