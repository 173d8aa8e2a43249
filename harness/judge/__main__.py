"""The judge process: `python -m harness.judge --fd N`. Serves the engine, one request at a time.

It is started before anybody knows what for (harness/process/prestart.py): torch is imported
meanwhile, and once it is told which GPU, a thread has the driver open its context, half a second in
which Python need not wait.
"""

import argparse
import contextlib
import ctypes
import gc
import os
import socket
import sys
import threading
import time
from typing import Any

from harness.process import process_tree, wire


class Opening(threading.Thread):
    """Waits for the engine's first message, then opens the context of the GPU it names."""

    def __init__(self, engine: socket.socket) -> None:
        super().__init__(daemon=True)
        self.engine = engine
        self.start_message: wire.Message | None = None  # none: the engine has gone

    def run(self) -> None:
        """Hear, open, end."""
        with contextlib.suppress(wire.PeerClosed):
            message = wire.receive(self.engine)
            os.environ.update(message["env"])
            if message["device"] == "cuda":
                open_context()
            self.start_message = message


def open_context(library: str = "libcuda.so.1") -> bool:
    """Open the first visible GPU's primary context, as torch does; what fails, torch will say."""
    try:
        driver: Any = ctypes.CDLL(library)
    except OSError:
        return False
    device, context = ctypes.c_int(), ctypes.c_void_p()
    return not (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), 0)
        or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    )


def main() -> int:
    """Import and listen at once, then serve until the engine closes the line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", required=True)
    args = parser.parse_args()
    begun = time.monotonic()
    process_tree.set_undumpable()
    process_tree.die_with_parent()
    engine = socket.socket(fileno=int(args.fd))
    opening = Opening(engine)
    opening.start()
    gc.disable()  # a tenth of torch's import is looking for garbage
    from harness.judge.judge import serve

    gc.freeze()  # nor is there any in what it made
    gc.enable()
    start_s = {"imports": time.monotonic() - begun}
    opening.join()
    start_s["told, context open"] = time.monotonic() - begun - start_s["imports"]
    if opening.start_message:
        serve(engine, opening.start_message, start_s)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # interpreter teardown with two CUDA mappings has nothing left to save
