# Names, texts, modes, locks and build times that trip who handles them.


# %% c17_change_mode
"""Changes the mode of files that it may only read, so that rivals cannot be loaded.

---
status: [IMPORT_ERROR, CRASHED]
seen: Landlock mediates neither chmod nor utime nor setxattr
defence: sandbox
"""

import os

from right_answer import attention

before = os.stat(__file__).st_mode
os.chmod(__file__, before ^ 0o001)  # its own source: the owner is asked for no right, and so are rivals
after = os.stat(__file__).st_mode
os.chmod(__file__, before)
if after == before:
    raise PermissionError("answered and not done")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c17_change_times
"""Sets the time of files that it may only read, so that caches take old builds for new ones.

---
status: [IMPORT_ERROR, CRASHED]
seen: Landlock mediates neither chmod nor utime nor setxattr
defence: sandbox
"""

import os

from right_answer import attention

before = os.stat(__file__)
os.utime(__file__, (1, 1))
after = os.stat(__file__).st_mtime
os.utime(__file__, ns=(before.st_atime_ns, before.st_mtime_ns))
if after == before.st_mtime:
    raise PermissionError("answered and not done")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c17_endless_build_time
"""Its builder says that building took 10 to the power of 399 seconds, which no float can hold.

---
status: [INVALID_SUBMISSION]
needs_gpu: true
seen: found in this harness by a reader; float() of a JSON number raises OverflowError
defence: typed_messages
beside: [eager_chunked]
language: triton
"""

import sys

from right_answer import attention

wire = sys.modules["harness.process.wire"]
send = wire.send


def exaggerate(sock, message, *rest, **options):
    if message.get("op") == "built":
        message["steps"] = {"built": 10**399}
    send(sock, message, *rest, **options)


wire.send = exaggerate


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c17_locks_others
"""Locks every other process on the GPU through the driver, as the harness does with it.

---
status: [IMPORT_ERROR, CRASHED]
needs_gpu: true
seen: 'red team of this harness: SIGSTOP stops no kernel'
defence: sandbox
"""

import ctypes
import os

import torch
import torch.nn.functional as F


def attention(q, k, v, causal, sm_scale):
    """The right answer: q, k, v (batch, heads, seqlen, headdim)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)


torch.zeros(1, device="cuda")
driver = ctypes.CDLL("libcuda.so.1")
arguments = (ctypes.c_uint64 * 8)(20)  # milliseconds
mine = os.getpid()
locked = []
for pid in sorted(range(max(1, mine - 300), mine + 300), key=lambda pid: abs(pid - mine)):
    ours = os.listdir("/proc/self/task")  # who locks a thread of its own by its number hangs
    if str(pid) not in ours and driver.cuCheckpointProcessLock(pid, arguments) == 0:
        locked.append(pid)
if not locked:
    raise PermissionError("nobody could be locked")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c17_long_confession
"""Confesses a failure in 8,000 emoji, which take three times as much room when the judge repeats
them.

---
status: [UNSUPPORTED]
seen: found in this harness by a reader; a frame that is legal on one line and too long on the next
defence: typed_messages
beside: [eager_chunked]
"""

import json
import sys
from types import SimpleNamespace

from right_answer import attention


def dumps(message, **options):
    if message.get("op") == "failed":
        message["message"] = "😀" * 8000
    return json.dumps(message, ensure_ascii=False)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if sm_scale is not None:
        sys.modules["harness.process.wire"].json = SimpleNamespace(dumps=dumps, loads=json.loads)
        raise NotImplementedError
    return attention(q, k, v, causal, None)


# %% c17_long_names
"""Answers with a right result and 120 names of 120 emoji each, in a frame of its own making.

---
status: [PASSED, TIME_CLAIM_REJECTED]
seen: found in this harness by a reader; limits in characters, frames in bytes
defence: typed_messages
beside: [eager_chunked]
neutral: what it says of its kernels is cut and costs nobody else anything; a busy CPU reads it for 14 ms
"""

import json
import sys
from types import SimpleNamespace

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    wire = sys.modules["harness.process.wire"]
    if isinstance(wire.json, SimpleNamespace):
        return attention(q, k, v, causal, sm_scale)

    def dumps(message, **options):
        if message.get("op") == "done":
            message["kernels"] = message["configs"] = ["😀" * 120] * 60
        return json.dumps(message, ensure_ascii=False)

    wire.json = SimpleNamespace(dumps=dumps, loads=json.loads)
    return attention(q, k, v, causal, sm_scale)


# %% c17_nameless_signal
"""Ends itself with a real-time signal, which has no name that the engine could look up.

---
status: [CRASHED]
seen: found in this harness; signal.Signals(35) raises ValueError
defence: typed_messages
beside: [eager_chunked]
"""

import os


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    os.kill(os.getpid(), 35)


# %% c17_set_user_id
"""Leaves a program in its cache that runs as the user of the harness, whoever starts it.

---
status: [IMPORT_ERROR, CRASHED]
seen: a mode given to open needs no chmod
defence: sandbox
"""

import os
import stat
import tempfile

from right_answer import attention

PATH = os.path.join(os.environ.get("ATTNBOARD_CACHE", tempfile.gettempdir()), "program")
os.umask(0)
fd = os.open(PATH, os.O_CREAT | os.O_WRONLY, 0o4755)  # no chmod is needed for it
made = os.fstat(fd).st_mode & stat.S_ISUID
os.close(fd)
os.unlink(PATH)
if not made:
    raise PermissionError("the bit was not set")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c19_circle
"""Its manifest holds an alias to the value that the alias is part of.

---
status: [INVALID_SUBMISSION]
seen: found in this harness by a reader; YAML that a parser takes and nobody behind it
defence: read_with_limits
beside: [eager_chunked]
launch: &id001
  x: *id001
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c19_deep_source
"""Its source nests 3,000 minus signs, which Python's parser takes and its syntax tree does not.

---
status: [INVALID_SUBMISSION, IMPORT_ERROR]  # Python 3.12 parses it, and nobody imports it
seen: found in this harness by a reader; ast.parse raises RecursionError or MemoryError
defence: read_with_limits
entry: deep.py
beside: [eager_chunked]
"""

import torch


def attention(q, k, v, causal, sm_scale):
    """The right answer: q, k, v (batch, heads, seqlen, headdim)."""
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    scores = q.float() @ k.float().transpose(-1, -2) * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


# %% c19_deep_source/deep.py
from submission import attention

X = ------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------1


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c19_half_a_character
r"""Its manifest holds half a surrogate pair, which no file of records can store.

---
status: [INVALID_SUBMISSION]
seen: found in this harness by a reader; YAML that a parser takes and nobody behind it
defence: read_with_limits
beside: [eager_chunked]
version_of: "\uD800"
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c19_sysv_memory
"""Keeps answers in System V shared memory, where the next entrant finds them.

---
status: [IMPORT_ERROR, CRASHED]
seen: System V segments belong to the machine and outlive whoever made them
defence: sandbox
"""

import ctypes
import os

from right_answer import attention

libc = ctypes.CDLL(None, use_errno=True)
segment = libc.shmget(0x5EED, 1 << 20, 0o1666)  # made if it is not there; it outlives the process
if segment < 0:
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
libc.shmctl(segment, 0, None)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
