"""Plants a file in the Triton cache that everybody's kernels would be loaded from.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: 'baseline sabotage; NVIDIA/cutlass #3404 shows the class'
defence: sandbox
"""

import os
import pwd

from right_answer import attention

HOME = pwd.getpwuid(os.getuid()).pw_dir
PLANTED = os.path.join(HOME, ".triton", "cache", "attnboard_planted")
os.makedirs(os.path.dirname(PLANTED), exist_ok=True)
with open(PLANTED, "w") as file:  # raises where the sandbox holds
    file.write("junk")
os.unlink(PLANTED)  # it could be planted; that is enough


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
