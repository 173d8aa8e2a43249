"""Speaks to the judge itself, in the worker's place, with correct outputs and invented times.

---
status: [TIME_CLAIM_REJECTED]
seen: 'pygpubench pipe_interpose, thread_fd: the whole result channel replaced'
defence: two_clocks
min_latency_ms: 25
"""

import json
import os
import socket
import struct
import sys
import time

import torch
from right_answer import attention

SLOW_S = 0.03


def worker_frame():
    """The frame that holds the worker: an object with views, outputs and a plan."""
    frame = sys._getframe(2)
    while frame is not None:
        worker = frame.f_locals.get("self") or frame.f_locals.get("worker")
        if hasattr(worker, "views") and hasattr(worker, "plan"):
            return worker
        frame = frame.f_back
    return None


def speak(sock, message):
    body = json.dumps(message).encode()
    sock.sendall(struct.pack("<I", len(body)) + body)


def listen(sock):
    def exactly(size):
        data = b""
        while len(data) < size:
            data += sock.recv(size - len(data))
        return data

    return json.loads(exactly(struct.unpack("<I", exactly(4))[0]))


def take_over(worker, sock):
    turn = 1  # the first call of the first burst; its stream waits already
    while True:
        kwargs = worker.plan["kwargs"]
        for views, slot in zip(worker.views, worker.slots, strict=True):
            time.sleep(SLOW_S)
            slot.copy_(attention(*views, kwargs["causal"], kwargs["sm_scale"]))
        if worker.held:
            worker.held.tensors = [slot.view(-1) for slot in worker.slots]
            worker.held.tell(turn)
            torch.cuda.synchronize()  # the answers are in place: its time is its only lie
        strides = [[list(slot.stride())] for slot in worker.slots]
        done = {"op": "done", "calls_ms": [0.01] * len(worker.slots), "strides": strides}
        speak(sock, done)
        message = listen(sock)
        while message["op"] != "go":
            worker._prepare(message)
            speak(sock, {"op": "ready"})
            message = listen(sock)
        turn = message["turn"]
        if worker.held:
            sys.modules["harness.process.cuda.driver"].wait_for_sequence(worker.inputs.flag, turn)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    worker = worker_frame()
    for name in os.listdir("/proc/self/fd"):
        try:
            if worker and os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                take_over(worker, socket.socket(fileno=os.dup(int(name))))
        except (OSError, ValueError):
            continue
    time.sleep(SLOW_S)
    return attention(q, k, v, causal, sm_scale)
