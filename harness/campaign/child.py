"""The process of one unit: `python -m harness.campaign.child`. The run is the same one as anywhere.

The unit comes as the first line of stdin (or in --unit FILE); what happens goes out as lines of
JSON on stdout (or into --events FILE). Its stdin stays open as long as somebody waits for it: once
it closes, the run ends as by Ctrl-C, whatever became of the process that started it.
"""

import argparse
import contextlib
import os
import signal
import socket
import sys
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from harness.board import record
from harness.campaign.executor import Message
from harness.campaign.node import machine_of
from harness.campaign.unit import Unit, misfit
from harness.catalog import entrants as catalog_entrants
from harness.engine.events import Observer, Progress
from harness.engine.session import execute, warm_up
from harness.errors import Exit, HarnessError, UnavailableError
from harness.process import process_tree
from harness.process.text import dumps
from harness.schema import Machine, Result

BLOCK_EVERY_S = 1.0  # the view does not need every block of every GPU


class EventWriter(Observer):
    """Writes events, one line each; builders and the run speak from several threads."""

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._last_block = 0.0

    def write(self, op: str, **fields: object) -> None:
        """One event."""
        message: Message = {"op": op, **fields}
        with self._lock:
            self.file.write(dumps(message) + "\n")
            self.file.flush()

    def save(self, result: Result) -> None:
        """One line of the record, with its checksum."""
        self.write("result", line=record.to_line(result))

    def stage(self, entry: str, text: str) -> None:
        """An entrant reached a step."""
        self.write("stage", entry=entry, text=text)

    def block(self, now: Progress) -> None:
        """How far one config is."""
        if now.done < now.total and time.monotonic() - self._last_block < BLOCK_EVERY_S:
            return
        self._last_block = time.monotonic()
        self.write("block", config=now.config, done=now.done, total=now.total, eta_s=now.eta_s)

    def note(self, text: str) -> None:
        """Something a person should know."""
        self.write("note", text=text)


def main() -> int:
    """Read the unit, run it, say how it ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", default="auto", help="NVML index, auto or none")
    parser.add_argument("--unit", type=Path, help="a file instead of stdin")
    parser.add_argument("--events", type=Path, help="a file instead of stdout")
    args = parser.parse_args()
    for polite in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(polite, signal.default_int_handler)
    with contextlib.ExitStack() as stack:
        out = sys.stdout
        if args.events:
            out = stack.enter_context(open(args.events, "a", encoding="utf-8"))
        events = EventWriter(out)
        try:
            unit = read_unit(args.unit)
            os.nice(19 if unit.task == "build" else 0)  # the least in its autogroup
            return carry_out(unit, args.gpu, events)
        except (KeyboardInterrupt, BrokenPipeError):  # or nobody listens any more
            return Exit.INTERRUPTED
        except HarnessError as error:
            events.write("fault", why=error.message)
            return error.exit_code
        except Exception as error:
            traceback.print_exc()
            events.write("fault", why=f"{type(error).__name__}: {error}")
            return Exit.USAGE


def carry_out(unit: Unit, gpu: str, events: EventWriter) -> int:
    """The run of `unit` on the GPU it was given."""
    machine = machine_of(gpu if unit.request.suite.device == "gpu" else "none")
    if lack := misfit(unit, machine):
        raise UnavailableError(lack)
    entrants = tuple(map(catalog_entrants.read_again, unit.request.entrants))
    run = replace(unit.request, machine=machine, entrants=entrants)
    events.write("hello", where=where(gpu, machine), machine=machine.model_dump(mode="json"))
    if unit.task == "build":
        warm_up(run, events)
    else:
        execute(run, events.save, events)
    events.write("end")
    return 0


def where(gpu: str, machine: Machine) -> str:
    """`host:0` or `host`: what a person calls this place."""
    host, place = socket.gethostname(), machine.uuid[:12] if gpu == "auto" else gpu
    return f"{host}:{place}" if machine.has_gpu else host


def read_unit(path: Path | None) -> Unit:
    """From a file, or from stdin, which is then watched."""
    if path is not None:
        process_tree.die_with_parent()  # a scheduler's own process; it has no line to us
        return Unit.model_validate_json(path.read_text(encoding="utf-8"))
    unit = Unit.model_validate_json(sys.stdin.buffer.readline())
    threading.Thread(target=_mind_stdin, daemon=True).start()
    return unit


def _mind_stdin() -> None:
    while os.read(0, 4096):  # not through sys.stdin: its lock would outlive us at exit
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
