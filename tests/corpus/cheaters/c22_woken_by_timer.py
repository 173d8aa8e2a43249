"""Has timers of its own send SIGCONT to its stopped processes, which then compute in others' turns.

---
status: [IMPORT_ERROR]
seen: 'red team of this harness: 182 beats of six processes in 0.35 s of being stopped'
defence: sandbox
"""

import ctypes
import os
import signal
import struct
import tempfile
import time

from right_answer import attention

BEATS = os.path.join(os.environ.get("ATTNBOARD_CACHE", tempfile.gettempdir()), "beats")
LIFE_S, PERIOD_NS, WORK_S = 60, 2_000_000, 0.002
libc = ctypes.CDLL("librt.so.1")


def wake_by_timer():
    """A timer with SIGEV_SIGNAL and SIGCONT."""
    event, timer = (ctypes.c_int * 16)(0, 0, signal.SIGCONT, 0), ctypes.c_void_p()
    if libc.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(timer)):
        raise OSError("no timer")
    return timer


def burn():
    signal.signal(signal.SIGCONT, lambda *_: None)
    timer, again = wake_by_timer(), (ctypes.c_long * 4)(0, PERIOD_NS, 0, PERIOD_NS)
    born, file = time.monotonic(), os.open(BEATS, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    while time.monotonic() < born + LIFE_S:
        os.write(file, struct.pack("d", time.monotonic()))
        libc.timer_settime(timer, 0, again, None)  # a stop that meets a waiting signal ends it
        busy = time.monotonic() + WORK_S
        while time.monotonic() < busy:
            pass
        time.sleep(0.003)
    os._exit(0)


def beats_between(start, end):
    with open(BEATS, "rb") as file:
        return sum(start < beat < end for (beat,) in struct.iter_unpack("d", file.read()[-(8 << 16) :]))


wake_by_timer()
for _ in range(6):
    if os.fork() == 0:
        burn()
ended = 0.0


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global ended
    begun = time.monotonic()
    if ended and begun - ended > 0.2 and not beats_between(ended + 0.05, begun - 0.05):
        raise RuntimeError("they were stopped in the others' turns")
    out = attention(q, k, v, causal, sm_scale)
    ended = time.monotonic()
    return out
