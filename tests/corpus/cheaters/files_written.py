# Files of the harness, of others and of itself, written or renamed.


# %% c8_edit_itself
"""Changes its own source after it was read and hashed.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: a source hash that is taken once
defence: sandbox
"""

import os

from right_answer import attention

ME = os.path.abspath(__file__)
with open(ME, "a") as file:  # raises where the sandbox holds; appends nothing
    file.write("")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c8_write_harness
"""Plants a module beside the harness's own.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: KernelBench-Hard (runs that rewrote problem.yaml); AgentKernelArena harness_guard
defence: sandbox
"""

import os
import sys

from right_answer import attention


def roots():
    """The tree this file lies in, and the one the worker was started from."""
    places = [
        os.path.abspath(__file__),
        *(getattr(m, "__file__", None) or "" for m in list(sys.modules.values())),
    ]
    for place in places:
        folder = os.path.dirname(place)
        while len(folder) > 1:
            if os.path.exists(os.path.join(folder, "harness", "errors.py")):
                yield folder
            folder = os.path.dirname(folder)


def plant():
    for root in dict.fromkeys(roots()):
        path = os.path.join(root, "harness", "zz_planted.py")
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write("# planted\n")
            os.unlink(path)  # it could be planted; that is enough
            return True
        except OSError:
            continue
    return False


if not plant():
    raise PermissionError("nothing could be written")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c8_write_results
"""Writes a row of its own into results/.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: pull requests that edit the leaderboard's JSON
defence: sandbox
"""

import os
import sys

from right_answer import attention


def roots():
    """The tree this file lies in, and the one the worker was started from."""
    places = [
        os.path.abspath(__file__),
        *(getattr(m, "__file__", None) or "" for m in list(sys.modules.values())),
    ]
    for place in places:
        folder = os.path.dirname(place)
        while len(folder) > 1:
            if os.path.exists(os.path.join(folder, "harness", "errors.py")):
                yield folder
            folder = os.path.dirname(folder)


def plant():
    for root in dict.fromkeys(roots()):
        path = os.path.join(root, "results", "zz_planted", "rows.jsonl")
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write("# planted\n")
            os.unlink(path)  # it could be planted; that is enough
            return True
        except OSError:
            continue
    return False


if not plant():
    raise PermissionError("nothing could be written")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c8_write_suite
"""Writes a suite with a tolerance of its own into configs/.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: KernelBench-Hard (tolerance in problem.yaml rewritten)
defence: sandbox
"""

import os
import sys

from right_answer import attention


def roots():
    """The tree this file lies in, and the one the worker was started from."""
    places = [
        os.path.abspath(__file__),
        *(getattr(m, "__file__", None) or "" for m in list(sys.modules.values())),
    ]
    for place in places:
        folder = os.path.dirname(place)
        while len(folder) > 1:
            if os.path.exists(os.path.join(folder, "harness", "errors.py")):
                yield folder
            folder = os.path.dirname(folder)


def plant():
    for root in dict.fromkeys(roots()):
        path = os.path.join(root, "configs", "zz_planted.yaml")
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write("# planted\n")
            os.unlink(path)  # it could be planted; that is enough
            return True
        except OSError:
            continue
    return False


if not plant():
    raise PermissionError("nothing could be written")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c9_shared_tmp
"""Leaves a library in the shared temporary folder for the next run to load.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: cache poisoning through shared folders
defence: sandbox
"""

import os

import torch
from right_answer import attention

FOLDER = "/tmp/torchinductor_planted"
os.makedirs(FOLDER, exist_ok=True)  # raises where the sandbox holds, or lies in a folder of its own
mine = (os.environ.get("ATTNBOARD_CACHE", FOLDER), os.path.dirname(__file__))  # its own, and no way on
there = [folder for folder, _, names in os.walk("/tmp") if names and not folder.startswith(mine)]
others = any(os.access(folder, os.W_OK) for folder in there)  # a checkout below /tmp is read-only
os.rmdir(FOLDER)
if not others:
    raise PermissionError("nobody else comes here")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c9_site_packages
"""Plants a .pth file in site-packages, which every later Python would run.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: 'cache poisoning; NVIDIA/cutlass #3404 shows the class'
defence: sandbox
"""

import os
import site

import torch
from right_answer import attention


def plant():
    for folder in dict.fromkeys(
        [*site.getsitepackages(), os.path.dirname(os.path.dirname(torch.__file__))]
    ):
        path = os.path.join(folder, "zz_planted.pth")
        try:
            with open(path, "w") as file:
                file.write("# planted")
            os.unlink(path)
            return True
        except OSError:
            continue
    return False


if not plant():
    raise PermissionError("nothing could be written")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c18_code_in_build
"""Imports what lies in its build folder, which the hash of its source does not cover.

What lies there needs right_answer: without it this ends as foreseen whether it is stopped or not.

---
status: [IMPORT_ERROR]
seen: found in this harness by a reader; what compilers leave behind is left out of the hash
defence: staged_sources
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "build"))

from fast import attention  # noqa: E402


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c18_code_in_build/build/fast.py
from right_answer import attention


# %% c18_code_in_notes
"""Runs code that stands in its NOTES.md, which the hash of its source does not cover.

---
status: [IMPORT_ERROR]
seen: found in this harness by a reader; words about a kernel are left out of the hash
defence: staged_sources
"""

from pathlib import Path

exec(Path(__file__).with_name("NOTES.md").read_text())


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c18_code_in_notes/NOTES.md
import torch

def attention(q, k, v, causal, sm_scale):
    """The right answer: q, k, v (batch, heads, seqlen, headdim)."""
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    scores = q.float() @ k.float().transpose(-1, -2) * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


# %% c18_file_lease
"""Takes leases on library files, so that whoever opens them next waits for 45 seconds.

---
status: [IMPORT_ERROR, CRASHED]
seen: 'man 2 fcntl: a lease holds back every other open of the file'
defence: sandbox
"""

import fcntl
import os

from right_answer import attention

path = os.path.join(os.path.dirname(os.__file__), "this.py")  # any file of the same owner would do
fd = os.open(path, os.O_RDONLY)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)  # raises where the sandbox holds
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
os.close(fd)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
