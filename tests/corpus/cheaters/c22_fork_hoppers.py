"""Leaves daemons that fork, end and so replace each other faster than they can be signalled.

---
status: [CRASHED, OVER_QUOTA]  # at level 1 its dead are its worker's to keep
seen: double forks; each is gone before it can be stopped or reaped
defence: orphan_sweep
"""

import os
import struct
import tempfile
import time

from right_answer import attention

BEATS = os.path.join(os.environ.get("ATTNBOARD_CACHE", tempfile.gettempdir()), "beats")
LIFE_S = 60


def hop():
    os.setsid()
    born, file = time.monotonic(), os.open(BEATS, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    while time.monotonic() < born + LIFE_S:
        if os.fork():
            os._exit(0)
        os.write(file, struct.pack("d", time.monotonic()))
    os._exit(0)


def longest_silence_s(start, end):
    with open(BEATS, "rb") as file:
        beats = [beat for (beat,) in struct.iter_unpack("d", file.read()[-(8 << 16) :])]
    heard = [start, *sorted(beat for beat in beats if start < beat < end), end]
    return max(after - before for before, after in zip(heard, heard[1:]))


for _ in range(2):
    if os.fork() == 0:
        hop()
ended = 0.0


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global ended
    begun = time.monotonic()
    pause_s = begun - ended
    if ended and pause_s > 0.02 and longest_silence_s(ended, begun) > 0.6 * pause_s:
        raise RuntimeError("they were stopped in the others' turns")
    out = attention(q, k, v, causal, sm_scale)
    ended = time.monotonic()
    return out
