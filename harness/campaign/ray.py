"""The engine of a Ray cluster: a task for every unit, with a GPU of its own; its words stream back.

A task launches the child of `local` and hands on its lines; it imports nothing of the harness and
nothing of a submission. Ray never retries (`max_retries=0`): what is an infrastructure fault and
what is a submission's own failure is told apart in campaign.py, for all engines alike.

Every node needs this checkout and its environment at the same path. Ray trusts all who reach its
ports, nodes as well, whose answers are unpickled here: docs/many-gpus.md.
"""

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from harness.campaign.executor import MODULE, LineReader, Told, gone, package, standing_in
from harness.campaign.node import wants
from harness.campaign.unit import Unit, to_text
from harness.errors import UnavailableError, UsageError
from harness.process.project import HOME

AHEAD = 2  # units submitted for every GPU: the next is placed while its owner hears of the last
WHICH = "--address HOST:PORT, which ray start --head tells, or RAY_ADDRESS"
GRACE_S = 60.0  # for a cancelled unit to end; its child has half of it


class RayCluster:
    """`address`: of a running cluster, or `local` for one here; `count`: GPUs at once."""

    def __init__(
        self, address: str | None, count: int | None, on_cpu: bool = False, module: str = MODULE
    ) -> None:
        self._ray = ray = package("ray", "ray")
        self._module = module
        self._ours = not ray.is_initialized()
        if self._ours:
            where = chosen(address)
            try:
                with standing_in(HOME):  # whose workers import from there
                    ray.init(address=where, log_to_driver=False)
            except Exception as cause:  # it asks all processes what they are called
                said = f"--engine ray: {type(cause).__name__}: {cause}"
                raise UnavailableError(said, WHICH) from None
        there = int(ray.cluster_resources().get("CPU" if on_cpu else "GPU", 0))
        if not there and count is None:
            hint = "give --gpus N to wait for some"
            raise UnavailableError("--engine ray: the cluster has no GPU now", hint)
        self.places = min(count or there, there) if there else count or 0
        self.window = count or (AHEAD * there)  # a cluster may grow while it runs
        self._task = ray.remote(num_returns="streaming", max_retries=0)(_carry_out())
        self._streams: dict[Any, LineReader] = {}
        self._kill_at: dict[str, float] = {}  # of those that are cancelled, by label

    def submit(self, unit: Unit) -> None:
        """Hand it to Ray, which places it where what it wants is free."""
        wanted = wants(unit)
        lack = [name for name in wanted if name not in self._ray.cluster_resources()]
        if lack:  # such a task would wait for ever
            hint = "start nodes with --resources, docs/many-gpus.md"
            raise UnavailableError(f"--engine ray: no node offers {', '.join(lack)}", hint)
        options: dict[str, Any] = {"name": f"attnboard {unit.label}", "resources": wanted}
        options |= {"num_cpus": 1, "num_gpus": 1 if unit.needs_gpu else 0}
        command = [self._module, "--gpu", "auto" if unit.needs_gpu else "none"]
        stream = self._task.options(**options).remote(to_text(unit), command, str(HOME))
        self._streams[stream] = LineReader(unit)

    def poll(self, timeout_s: float) -> list[Told]:
        """Lines that arrived on any stream."""
        said: list[Told] = []
        streams = {  # of one that is cancelled `next` waits for its node
            stream.completed() if lines.label in self._kill_at else stream: stream
            for stream, lines in self._streams.items()
        }
        if every := list(streams):
            first, _ = self._ray.wait(every, num_returns=1, timeout=timeout_s)
            ready = first and self._ray.wait(every, num_returns=len(every), timeout=0)[0]
            for each in ready:
                said += self._next(streams[each])
        for stream, lines in list(self._streams.items()):
            if time.monotonic() > self._kill_at.get(lines.label, math.inf):  # whatever it answers
                self._ray.cancel(stream, force=True)
                said.append(gone(self._streams.pop(stream).label, "no end after it was cancelled"))
        return said

    def cancel(self, label: str) -> None:
        """Interrupt the task; it closes its child's stdin, and the child ends as by Ctrl-C."""
        for stream, lines in list(self._streams.items()):
            if lines.label == label:
                self._kill_at.setdefault(label, time.monotonic() + GRACE_S)
                self._ray.cancel(stream, force=False)

    def close(self) -> None:
        """Cancel what is left; leave the cluster as it was found."""
        for stream in list(self._streams):
            with contextlib.suppress(Exception):
                self._ray.cancel(stream, force=False)
        if self._ours:
            self._ray.shutdown()

    def _next(self, stream: Any) -> list[Told]:
        lines = self._streams[stream]
        try:
            data = self._ray.get(next(stream))
            return lines.hear(data) if data else [Told(lines.label, {"op": "began"})]
        except StopIteration:
            why = ""
        except Exception as cause:  # a node or a worker of Ray died, or the task was cancelled
            text = str(cause).strip().splitlines()
            why = f"{type(cause).__name__}: {text[0] if text else ''}"
        del self._streams[stream]
        return [gone(lines.label, why)]


def chosen(address: str | None) -> str:
    """The cluster that was named, here or by RAY_ADDRESS; raises UsageError where none was.

    Ray's own `auto` believes the command line of any process of the host, an entrant's as well.
    """
    found = address or os.environ.get("RAY_ADDRESS") or "auto"
    if found == "auto":
        raise UsageError("--engine ray: which cluster? none is looked for", WHICH)
    return found


def _carry_out() -> Callable[[str, list[str], str], Iterator[bytes]]:
    """The task; made in a function, so that Ray ships its code and nodes import none of ours."""

    def carry_out(unit: str, command: list[str], root: str) -> Iterator[bytes]:
        import os
        import select
        import signal
        import subprocess
        import tempfile

        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=root,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                start_new_session=True,
            )
            assert process.stdin
            assert process.stdout
            try:
                yield b""  # it began
                process.stdin.write(unit.encode() + b"\n")
                while True:  # in steps, so that a cancellation is heard between two of them
                    if not select.select([process.stdout], [], [], 1.0)[0]:
                        continue
                    if not (data := os.read(process.stdout.fileno(), 1 << 16)):
                        break
                    yield data
                code = process.wait()
            finally:
                process.stdin.close()
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
            if code:
                errors.seek(0)
                *_, last = "", *errors.read()[-2000:].decode(errors="replace").strip().splitlines()
                raise RuntimeError(f"the unit's process ended with {code}; {last}")

    return carry_out
