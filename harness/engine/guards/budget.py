"""How long an entrant may keep a run busy: deadlines of its turns, a budget of all of them.

The budget is the suite's own scale: `entrant_s` seconds, and `entrant_times` times what the trusted
control needed for its turns so far. One deadline must leave room for a first call that compiles;
without a budget some fifteen checks and all blocks of every case could each take as long as that.
Who has let one deadline pass is not trusted with another as long.
"""

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.schema import Limits

SHORTEST_S = 1.0


@dataclass
class Budget:
    """What everybody has spent, in seconds of wall-clock; `control`: whose turns are the scale."""

    limits: Limits
    control: str
    spent_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    hung: set[str] = field(default_factory=set)

    @contextlib.contextmanager
    def spending(self, name: str, instead_of: str = "") -> Iterator[None]:
        """The wall-clock of the block is what `name` spends, and not who spends around it."""
        begun_s = time.monotonic()
        try:
            yield
        finally:
            took_s = time.monotonic() - begun_s
            self.spent_s[name] += took_s
            if instead_of:
                self.spent_s[instead_of] -= took_s

    def allowed_s(self) -> float:
        """What an entrant may have spent by now."""
        return self.limits.entrant_s + self.limits.entrant_times * self.spent_s[self.control]

    def deadline_s(self, name: str, timeout_s: float) -> float:
        """Of the next turn of `name`, which by itself may take `timeout_s`."""
        left = max(SHORTEST_S, self.allowed_s() - self.spent_s[name])
        return min(timeout_s, left, self.limits.again_s if name in self.hung else timeout_s)

    def overdrawn(self, name: str) -> str:
        """Why `name` gets no further turn, or an empty string."""
        allowed_s, limits = self.allowed_s(), self.limits
        if self.spent_s[name] < allowed_s:
            return ""
        return (
            f"spent {self.spent_s[name]:.0f} s of {allowed_s:.0f} s: {limits.entrant_s:g} s and "
            f"{limits.entrant_times:g} times the {self.spent_s[self.control]:.1f} s of "
            f"{self.control}"
        )
