"""Compiles C with gcc into the cache it was given, and loads it with ctypes.

---
status: [PASSED]
why: compilers are subprocesses and write into the cache; a sandbox must allow both
needs_cpu: true
language: cuda
needs:
  tools: [gcc]
"""

import ctypes
import hashlib
import os
import subprocess
import tempfile

import torch

SOURCE = r"""
#include <math.h>
#include <stdlib.h>
/* q, k, v, o: [rows of heads][s][d] floats */
void attend(const float *q, const float *k, const float *v, float *o,
            long heads, long s, long d, float scale, int causal) {
    float *w = malloc(s * sizeof(float));
    for (long h = 0; h < heads; h++, q += s * d, k += s * d, v += s * d, o += s * d)
        for (long i = 0; i < s; i++) {
            long keys = causal ? i + 1 : s;
            float peak = -INFINITY, total = 0;
            for (long j = 0; j < keys; j++) {
                float dot = 0;
                for (long c = 0; c < d; c++) dot += q[i * d + c] * k[j * d + c];
                w[j] = dot * scale;
                if (w[j] > peak) peak = w[j];
            }
            for (long j = 0; j < keys; j++) total += (w[j] = expf(w[j] - peak));
            for (long c = 0; c < d; c++) {
                float sum = 0;
                for (long j = 0; j < keys; j++) sum += w[j] * v[j * d + c];
                o[i * d + c] = sum / total;
            }
        }
    free(w);
}
"""


def build():
    cache = os.environ.get("ATTNBOARD_CACHE", tempfile.gettempdir())
    name = hashlib.sha256(SOURCE.encode()).hexdigest()[:16]
    path = os.path.join(cache, f"attend_{name}.so")
    if not os.path.exists(path):
        source = os.path.join(cache, f"attend_{name}.c")
        with open(source, "w") as file:
            file.write(SOURCE)
        command = ["gcc", "-O2", "-shared", "-fPIC", source, "-o", path + ".new", "-lm"]
        subprocess.run(command, check=True)
        os.rename(path + ".new", path)
    return ctypes.CDLL(path)


LIBRARY = build()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    host = [x.float().cpu().contiguous() for x in (q, k, v)]
    out = torch.empty_like(host[0])
    batch, heads, seqlen, headdim = q.shape
    LIBRARY.attend(
        *(ctypes.c_void_p(x.data_ptr()) for x in (*host, out)),
        *(ctypes.c_long(n) for n in (batch * heads, seqlen, headdim)),
        ctypes.c_float(scale),
        ctypes.c_int(causal),
    )
    return out.to(q.device, q.dtype)
