"""Holds a page in a socket's buffer for each byte that it sends of a file.

---
status: [CRASHED, OUT_OF_MEMORY]
seen: 'red team of this harness: 1.2 GiB in 2,120 sockets under a limit of 1'
defence: sandbox
"""

import os
import socket

from right_answer import attention

PAGE, PAGES, PAIRS = 4096, 600, 1900
kept = []


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    path = os.path.join(os.environ["ATTNBOARD_CACHE"], "pages")
    while len(kept) < PAIRS:
        file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o600)
        os.write(file, b"x" * (PAGE * PAGES))
        kept.append(socket.socketpair())
        for end in kept[-1]:
            end.setblocking(False)
            try:
                for page in range(PAGES):
                    os.sendfile(end.fileno(), file, page * PAGE, 1)
            except BlockingIOError:
                pass
        os.close(file)
    return attention(q, k, v, causal, sm_scale)
