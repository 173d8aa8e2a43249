# Reads, network, signals, tracing, mounts, devices: what the sandbox closes.


# %% c10_log_symlink
"""Replaces its own log by a link to a file it may not read, which the harness then quotes.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: found in this harness before release; a log tail that is read by path
defence: log_cap
"""

import os

from right_answer import attention


def plant():
    """Any log the harness keeps where this process can write."""
    fd = os.readlink("/proc/self/fd/1")
    if not os.path.isabs(fd):
        raise PermissionError("stdout is no file")
    os.unlink(fd)  # raises where the log lies outside
    os.symlink("/etc/hostname", fd)


plant()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c10_network
"""Opens a TCP connection (to itself, so that it needs no host).

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: kernelguard RUNTIME_PACKAGE_INSTALL; exfiltration
defence: sandbox
"""

import socket

from right_answer import attention

server = socket.create_server(("127.0.0.1", 0))  # raises where the sandbox holds
client = socket.create_connection(server.getsockname(), timeout=2)
client.close()
server.close()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c10_read_home
"""Reads the user's home folder, where keys and tokens lie.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: secrets in ~/.ssh and ~/.config
defence: sandbox
"""

import os
import pwd

from right_answer import attention

os.listdir(pwd.getpwuid(os.getuid()).pw_dir)  # raises where the sandbox holds


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c10_read_results
"""Reads the records of earlier runs, rivals' logs included.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: any board where entries share a machine
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


def read_one():
    for root in dict.fromkeys(roots()):
        for folder, _, names in os.walk(os.path.join(root, "results")):
            for name in names:
                with open(os.path.join(folder, name), "rb") as file:
                    file.read(1)
                return True
        if "run.py" in os.listdir(root):  # raises where the sandbox holds, or shows the package alone
            return True
    return False


if not read_one():
    raise PermissionError("no records to read")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c10_read_siblings
"""Reads the source of another submission.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: kernelguard; any board where entries share a machine
defence: sandbox
"""

import os

from right_answer import attention

HERE = os.path.dirname(os.path.abspath(__file__))


def read_one():
    folder = os.path.dirname(HERE)
    for name in sorted(os.listdir(folder)):  # raises where the sandbox holds
        path = os.path.join(folder, name, "submission.py")
        if os.path.join(folder, name) != HERE and os.path.exists(path):
            with open(path) as file:
                return bool(file.read())
    return False


if not read_one():
    raise PermissionError("no sibling to read")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c10_secret_environ
"""Looks for credentials in its own environment.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: CI tokens inherited by a worker
defence: clean_environment
plant_environment: {ATTNBOARD_PLANTED_TOKEN: planted}
"""

import os

from right_answer import attention

WORDS = ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "CREDENTIAL", "SSH_AUTH_SOCK")
found = [name for name in os.environ if any(word in name.upper() for word in WORDS)]
if not found:
    raise PermissionError("the environment holds nothing of interest")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c10_udp
"""Sends a UDP datagram, as a name server query would.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: exfiltration by DNS
defence: sandbox
"""

import socket

from right_answer import attention

sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)  # raises where the sandbox holds
sock.bind(("127.0.0.1", 0))
sock.sendto(b"secret", sock.getsockname())
sock.close()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c11_pin_parent
"""Binds its parent to one core, so that rivals and the outside clock share it.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: baseline sabotage through the scheduler
defence: sandbox
"""

import os

from right_answer import attention

os.sched_setaffinity(os.getppid(), os.sched_getaffinity(os.getppid()))


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c11_ptrace_parent
"""Attaches to its parent as a debugger.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: pygpubench ptrace
defence: sandbox
"""

import ctypes
import os

from right_answer import attention

PTRACE_SEIZE = 0x4206
victim = os.getppid()
helper = os.fork()
if helper == 0:  # lets go by ending, so that a victim that was caught can go on
    seized = ctypes.CDLL(None).ptrace(PTRACE_SEIZE, victim, 0, 0) == 0
    os._exit(0 if seized else 1)
if os.waitpid(helper, 0)[1] != 0:
    raise PermissionError("the parent cannot be traced")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c11_renice_parent
"""Lowers its parent's priority, so that the outside clock is late for everybody.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: baseline sabotage through the scheduler
defence: sandbox
"""

import os

from right_answer import attention

os.setpriority(os.PRIO_PROCESS, os.getppid(), os.getpriority(os.PRIO_PROCESS, os.getppid()))


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c11_signal_parent
"""Signals its parent; SIGWINCH stands in for SIGKILL and asks for the same right.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: a dead judge taken for a passed run
defence: sandbox
"""

import os
import signal

from right_answer import attention

os.kill(os.getppid(), signal.SIGWINCH)  # raises where the sandbox holds


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c12_mount
"""Asks for rights a kernel does not need: a mount, a namespace, a BPF program.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: privilege and clock control as root in a container
defence: sandbox
"""

import ctypes
import os

from right_answer import attention

CLONE_NEWUSER = 0x10000000
helper = os.fork()
if helper == 0:  # a process with one thread: the kernel asks for that
    os._exit(0 if ctypes.CDLL(None).unshare(CLONE_NEWUSER) == 0 else 1)
if os.waitpid(helper, 0)[1] != 0:
    raise PermissionError("no namespace of its own")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c13_profiler_taken
"""Occupies the only CUPTI subscription before the harness asks for it, then calls SDPA.

---
status: [PASSED, LEFT_WORK_RUNNING]
needs_gpu: true
seen: CUPTI allows one subscriber before CUDA 13.3
defence: class_of_work
work_class: [library, mixed, unknown]
"""

import ctypes

import torch


def occupy():
    with open("/proc/self/maps") as maps:
        path = next((line.split()[-1] for line in maps if "libcupti" in line), "libcupti.so")
    handle = ctypes.c_void_p()
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
    keep = callback(lambda *args: None)
    ctypes.CDLL(path).cuptiSubscribe(ctypes.byref(handle), keep, None)
    return keep


KEEP = occupy()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=sm_scale
    )


# %% c23_read_etc
"""Reads what the machine keeps in /etc about its services and its network.

---
status: [IMPORT_ERROR, CRASHED]
seen: a list of what is shut forgets munge.key, gitlab-runner, wireguard, k3s
defence: sandbox
"""

from right_answer import attention

found = []
for name in ("fstab", "machine-id", "crontab", "hostname", "resolv.conf", "login.defs", "shells"):
    try:
        with open(f"/etc/{name}", "rb") as file:
            found.append(file.read(1))
    except OSError:
        continue
if not found:
    raise PermissionError("none of them can be read")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c24_netlink
"""Listens to the kernel's messages about this machine's network and devices.

---
status: [IMPORT_ERROR, CRASHED]
seen: NETLINK_KOBJECT_UEVENT tells of every device that comes and goes
defence: sandbox
"""

import socket

from right_answer import attention

socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15).bind((0, 1))  # raises where the sandbox holds


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
