"""The worker process: `python -m harness.worker --fd N …` serves the judge, `--build` fills caches.

Usually it is a fork of harness/worker/forkserver.py, which has paid for the imports.

It holds the submission and nothing worth stealing: no seed, no reference, no tolerance, no path of
a result. What it says is checked by the judge, and its exit code and its output mean nothing.
"""

import argparse
import contextlib
import importlib
import io
import json
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from harness.errors import WireError
from harness.problems.base import Probe, by_name, keywords
from harness.process import process_tree, wire
from harness.process.cuda.driver import keep_memory_private, timer, wait_for_sequence
from harness.process.cuda.shared_memory import DTYPES, Arena
from harness.process.forkserver import WORKER_NAME
from harness.schema import Case, Manifest, Status
from harness.worker.burst import cpu_burst, gpu_burst
from harness.worker.held import Held, Ring, dense_storage
from harness.worker.introspect import listening, naming, tuned
from harness.worker.load import LoadError, classify, describe, load_function
from harness.worker.stretch import gpu_stretch, windows_of

#: What the driver takes to open a context. It opens one at a time, on all GPUs of a host together
#: (benchmarks/many_gpus.py: ten that are asked for at once take 1.3 to 1.8 s), and the judge waits
#: for the first.
OPENING_S = 0.12


class BadOutput(Exception):
    """The submission returned something that is not its output."""

    status = Status.BAD_OUTPUT


class Worker:
    """One submission, loaded, with the judge's buffers mapped."""

    def __init__(
        self,
        function: Callable[..., Any],
        folder: Path,
        device: str,
        tell: Callable[[wire.Message], object] = lambda message: None,
    ) -> None:
        """tell: says something to the judge between a request and its answer."""
        self.function, self.folder, self.device, self.tell = function, folder, device, tell
        self.inputs: Arena | None = None
        self.outputs: Arena | None = None
        self.held: Held | None = None  # on a GPU
        self.plan: wire.Message = {}
        self.strides: list[list[list[int]]] = []

    def handle(self, message: wire.Message, fds: Sequence[int] = ()) -> wire.Message:
        """Answer one message of the judge; `fds` came along with it."""
        if (op := message["op"]) == "map":
            first, second = fds
            self.inputs = Arena.open(message["inputs"], first)
            self.outputs = Arena.open(message["outputs"], second)
            if self.device == "cuda":
                self.held = Held(self.outputs)
            return {"op": "mapped"}
        if op == "prepare":
            self._prepare(message)
            return {"op": "ready"}
        if op == "go":
            return self._go(int(message["turn"]))
        if op == "stretch":
            return self._stretch(message)
        if op == "prime":
            if self.device == "cuda":
                with listening():
                    torch.zeros(1, device="cuda")
            return {"op": "profiler_started"}
        raise WireError(f"unknown message '{op}'")

    def _prepare(self, message: wire.Message) -> None:
        assert self.inputs
        assert self.outputs
        self.plan = message
        self.call = by_name(self.function, message["keywords"])
        calls = int(message["calls"])
        width, ins = len(message["inputs"]), self.inputs.carve(message["inputs"] * calls)
        self.views = [tuple(ins[i * width : (i + 1) * width]) for i in range(calls)]
        self.slots = self.outputs.carve(message["outputs"] * calls)
        # Host arenas on a GPU machine: the copies are outside the worker's clock.
        self.staged = self.device == "cuda" and self.inputs.kind == "host"
        self.strides = [[] for _ in range(calls)]
        if self.held:
            asked = ("inputs", "outputs", "calls", "kwargs")
            self.held.prepare(json.dumps([message[key] for key in asked]), self.slots)
            self.events = [timer() for _ in range(calls + 1)]
            torch.cuda.synchronize()

    def _go(self, turn: int) -> wire.Message:
        assert self.inputs
        calls = self.views
        if self.staged:
            calls = [tuple(tensor.cuda() for tensor in call) for call in calls]
            torch.cuda.synchronize()
        kwargs = self.plan["kwargs"]
        kernels: list[str] = []
        function = self.call
        if self.plan["profile"] and self.device == "cuda":
            function = naming(function, kernels)
        if self.held:
            if turn:
                wait_for_sequence(self.inputs.flag, turn)
            after = partial(self._kept, turn)
            with self.held.lending():
                calls_ms = gpu_burst(function, calls, kwargs, self._keep, self.events, after)
            if self.staged:
                for slot, tensor in zip(self.slots, self.held.tensors, strict=True):
                    slot.view(-1).copy_(tensor)
        else:
            calls_ms = cpu_burst(function, calls, kwargs, self._keep)
            self._kept(turn=0)
        done = {"op": "done", "calls_ms": calls_ms, "strides": self.strides, "kernels": kernels}
        if self.plan["profile"]:
            done["configs"] = tuned(sys.modules.get("submission"))
        return done

    def _stretch(self, message: wire.Message) -> wire.Message:
        """Calls back to back; the results of the last stay where the judge can read them."""
        assert self.inputs
        specs, tensors, calls = self.plan["inputs"], len(self.views), int(message["calls"])
        asked = (specs, message["alone"], tensors, calls, int(message["seed"]))
        given, kwargs = windows_of(self.inputs, *asked), self.plan["kwargs"]
        if self.held:
            assert self.outputs
            ring, width = Ring(self.held, self.outputs), len(self.plan["outputs"])

            def before(call: int) -> None:
                for number in range(width):
                    ring.let_go(call % tensors * width + number)

            def keep(result: Any, call: int) -> None:
                self._keep(result, call % tensors, ring)
                ring.over(call + 1)

            hooks = (before, keep, message["counted"])
            with self.held.lending():
                calls_ms = [gpu_stretch(self.call, given, kwargs, *hooks)]
        else:
            calls_ms = cpu_burst(self.call, list(given), kwargs, self._keep)
        return {"op": "done", "calls_ms": calls_ms, "strides": self.strides[:1]}

    def _kept(self, turn: int) -> None:
        """All results are on their way: tell the judge's stream, which waits for `turn` if > 0."""
        if turn:
            assert self.held
            self.held.tell(turn)
        if self.plan["tells"]:
            self.tell({"op": "called"})

    def _keep(self, result: Any, index: int, ring: Ring | None = None) -> None:
        """Check what a call returned and hold it, in place or as a copy; in a stretch in a ring."""
        width = len(self.plan["outputs"])
        results = result if isinstance(result, tuple) and width > 1 else (result,)
        if len(results) != width:
            raise BadOutput(f"returned {len(results)} tensors, expected {width}")
        for number, tensor in enumerate(results):
            sizes, dtype = self.plan["outputs"][number]
            require_output(tensor, tuple(sizes), DTYPES[dtype], self.device)
            place = index * width + number
            if ring:
                strides = ring.keep(tensor, place)
            elif self.held:
                strides = self.held.keep(tensor)
            else:
                strides = copy_out(tensor, self.slots[place])
            if len(self.strides[index]) < width:
                self.strides[index].append(list(strides))


def copy_out(tensor: torch.Tensor, slot: torch.Tensor) -> tuple[int, ...]:
    """Copy one result into the judge's memory; returns the strides that it is to be read with."""
    flat = dense_storage(tensor) if tensor.shape == slot.shape else None
    if flat is None:  # holes or overlap: copy by value
        slot.copy_(tensor)
        return slot.stride()
    slot.view(-1).copy_(flat)
    return tensor.stride()


def require_output(tensor: Any, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    """Raise BadOutput unless `tensor` is a plain tensor of that shape, dtype and device."""
    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        raise BadOutput(f"returned {type(tensor).__name__}, expected torch.Tensor")
    if tuple(tensor.shape) != shape:
        raise BadOutput(f"returned shape {tuple(tensor.shape)}, expected {shape}")
    if tensor.dtype != dtype:
        raise BadOutput(f"returned {tensor.dtype}, expected {dtype}")
    if tensor.device.type != device:
        raise BadOutput(f"returned a tensor on {tensor.device}, expected {device}")


def failure(cause: BaseException, folder: Path) -> wire.Message:
    """The message that ends this worker's entry with a status and a reason."""
    if isinstance(cause, LoadError):
        return {"op": "failed", "status": cause.status.value, "message": cause.message[:6000]}
    status = classify(cause, importing=False)
    message = describe(cause, folder)[:6000] + device_fault(cause)
    return {"op": "failed", "status": status.value, "message": message}


def device_fault(cause: BaseException) -> str:
    """What the device itself says, where the exception is only a library's echo of it."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return ""
    try:
        torch.cuda.synchronize()
    except Exception as fault:
        first = str(fault).splitlines()[0]
        return "" if first in str(cause) else f" [device: {first}]"
    return ""


def serve(sock: socket.socket, args: argparse.Namespace, manifest: Manifest) -> None:
    """Load, then answer until the judge closes the line; one failure ends the process."""
    folder, turn = Path(args.folder), time.monotonic() + args.place * OPENING_S
    try:
        if manifest.entry.endswith(".cu"):
            wait_for_cubins(sock, args.device, turn)
        function = load_function(folder, manifest, args.function)
        if args.device == "cuda":
            open_context(sock, turn)
        if args.cases:
            rehearse(sock, calls_of(function, args, manifest, timed=False))
        worker = Worker(function, folder, args.device, partial(wire.send, sock))
    except BaseException as cause:
        wire.receive(sock)
        wire.send(sock, failure(cause, folder))
        return
    while True:
        try:
            message, fds = wire.receive_with_fds(sock, max_fds=2)
        except wire.PeerClosed:
            return
        try:
            reply = worker.handle(message, fds)
        except BaseException as cause:
            wire.send(sock, failure(cause, folder))
            return
        wire.send(sock, reply)


def open_context(sock: socket.socket, turn: float) -> None:
    """While the judge and the others still start: at its turn, or when the judge speaks to it."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        select.select([sock], [], [], max(0.0, turn - time.monotonic()))
    torch.zeros(1, device="cuda")


def wait_for_cubins(sock: socket.socket, device: str, turn: float) -> None:
    """Open the context of a plain .cu, import what launches it, and wait until the judge speaks.

    It does so once the builder is done (harness/engine/session.py), so nothing is compiled twice.
    """
    from harness.worker.cuda import launch

    if device == "cuda":
        open_context(sock, turn)
        launch.get_ready()
    select.select([sock], [], [])


def rehearse(sock: socket.socket, asked: Iterable[Callable[[], object]]) -> None:
    """Until the judge speaks: what a library works out once for a shape is worked out by then.

    cuDNN takes half a second for each. Who breaks its context leaves, and a fresh one is asked.
    """
    for call in asked:
        if select.select([sock], [], [], 0)[0]:
            break
        with contextlib.suppress(Exception):  # said when the judge asks the same
            call()
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        os._exit(1)
    torch.cuda.empty_cache()


def calls_of(
    function: Callable[..., Any], args: argparse.Namespace, manifest: Manifest, timed: bool = True
) -> Iterator[Callable[[], object]]:
    """Calls on each case (if `timed`, twice), then on its probes, with inputs of their own."""
    from harness.problems import get_problem

    problem = get_problem(args.problem)
    tensors = importlib.import_module(problem.tensors_module)
    for case in (Case.model_validate(item) for item in json.loads(args.cases)):
        itself = Probe(case, "normal", problem.kwargs(case))
        probes = problem.probes(case, manifest.claims)
        small = (probe for probe in probes if timed or probe.case.shape != case.shape)
        for probe in (itself, itself, *small) if timed else small:
            generator = torch.Generator(args.device).manual_seed(0)
            inputs = tensors.make_inputs(
                probe.case, "normal", generator, torch.device(args.device), probe.kwargs
            )
            named = by_name(function, keywords(problem.inputs(probe.case)))
            yield partial(named, *inputs, **probe.kwargs)


def build(sock: socket.socket, args: argparse.Namespace, manifest: Manifest) -> None:
    """Call the submission on each case and probe; tell when kernels run.

    That compiles and autotunes all there is; the timed shapes come first, so a search finds them.
    """
    folder = Path(args.folder)
    try:
        function = load_function(folder, manifest, args.function)
        for call in calls_of(function, args, manifest):
            call()
            if args.device == "cuda":
                wire.send(sock, {"op": "called"})
                torch.cuda.synchronize()
                wire.send(sock, {"op": "ran"})
    except BaseException as cause:
        wire.send(sock, failure(cause, folder))
        return
    wire.send(sock, {"op": "built"})


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, hide the arguments from the submission, serve."""
    parser = argparse.ArgumentParser()
    for flag in ("--fd", "--folder", "--manifest", "--function", "--device", "--problem"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--place", type=int, default=0, help="how many are asked before it")
    parser.add_argument("--cases", default="", help="to build for, or to rehearse")
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--ahead", default="", metavar="CC/SMS", help="compile for this; no GPU")
    args = parser.parse_args(argv)
    process_tree.die_with_parent()
    process_tree.set_process_name(WORKER_NAME)
    manifest = Manifest.model_validate_json(args.manifest)
    sys.argv = [manifest.entry]
    if isinstance(sys.stdout, io.TextIOWrapper):  # a file: what is printed outlives a kill
        sys.stdout.reconfigure(line_buffering=True)
    sock = socket.socket(fileno=int(args.fd))
    torch.set_grad_enabled(False)
    if args.device == "cuda" and not args.ahead:
        keep_memory_private()
    if args.ahead:
        from harness.worker.cross_compile import without_gpu

        without_gpu(args.ahead)
        args.device = "cpu"
    (build if args.build else serve)(sock, args, manifest)
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    code = main()
    os._exit(code)  # leave without running whatever the submission registered at exit
