"""The judge and the fork server, started before anybody knows what for: torch takes seconds.

`start_next` starts them: run.py before most of its imports, --watch between two runs. `taken` gives
a run what was started, or starts it then. Neither process is told anything yet: the judge learns
problem and GPU from the engine's first message, the fork server an environment, walls and a
submission's folder with each fork; until then neither has a context on a GPU. Nothing here may
import pydantic.
"""

import atexit
import contextlib

from harness.process import bytecode
from harness.process.child import Child, bare_env
from harness.process.forkserver import ForkServer
from harness.process.sandbox import enter
from harness.process.scratch import house, scratch_folder

JUDGE: tuple[str, ...] = ("harness.judge",)  # the module to start, and its arguments


class TrustedProcesses:
    """The scratch folder of a run, and the two processes that every run has."""

    def __init__(self) -> None:
        enter.allow_more_files()
        with contextlib.ExitStack() as stack:
            self.scratch = stack.enter_context(scratch_folder())
            self.judge = Child(JUDGE[0], JUDGE[1:], None)
            stack.callback(self.judge.end)
            home = house(self.scratch)
            env = bytecode.with_cache(bare_env(home))
            self.forkserver = ForkServer(home, env, self.scratch / "forkserver.log")
            stack.callback(self.forkserver.close)
            self._end = stack.pop_all()

    def close(self) -> None:
        """End both and remove the folder."""
        self._end.close()


_waiting: list[TrustedProcesses] = []


def start_next(runs: int = 1) -> None:
    """Start both for each of the next `runs` runs, as far as they do not wait already."""
    while len(_waiting) < runs:
        _waiting.append(TrustedProcesses())


def taken() -> contextlib.closing[TrustedProcesses]:
    """What `start_next` started, once, or a fresh one; ended on the way out."""
    return contextlib.closing(_waiting.pop(0) if _waiting else TrustedProcesses())


@atexit.register
def end_waiting() -> None:
    """End what no run took: a name was misspelt, there is no GPU."""
    while _waiting:
        _waiting.pop().close()
