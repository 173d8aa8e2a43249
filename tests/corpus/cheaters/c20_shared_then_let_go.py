"""Hoards shared memory of no file and lets go of its pages, which stay and are nobody's any more.

---
status: [OUT_OF_MEMORY]
seen: 'red team of this harness: 1.4 GiB under a limit of 1, with a resident size of nothing'
defence: memory_limit
"""

import mmap
import time

from right_answer import attention

SIZE, STEP = 5 << 30, 64 << 20  # more than a worker may have
kept, junk = mmap.mmap(-1, SIZE), b"x" * STEP
for start in range(0, SIZE, STEP):
    kept[start : start + STEP] = junk
    kept.madvise(mmap.MADV_DONTNEED, start, STEP)
time.sleep(1)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
