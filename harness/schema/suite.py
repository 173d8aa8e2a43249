"""What is measured: cases, and the limits of a run."""

from __future__ import annotations

import hashlib
import json
from typing import Literal

from pydantic import Field, field_validator

from harness.schema.common import MOST_BLOCKS, MOST_CALLS, Dtype, Frozen, Limit, Name

MOST_SEQLEN = 1 << 24
MOST_SUSTAINED_S = 60
#: Of a case that a run draws from its secret; no suite may use it.
HIDDEN_PREFIX = "hidden_"


def is_hidden(config: str) -> bool:
    """Whether a case of this name was drawn from the secret of its run."""
    return config.startswith(HIDDEN_PREFIX)


class Case(Frozen):
    """One shape of a problem; `burst` is the number of calls in one sample."""

    name: Name
    batch: int = Field(ge=1, le=65536)
    heads: int = Field(ge=1, le=65536)
    seqlen: int = Field(ge=1, le=MOST_SEQLEN)
    headdim: int = Field(ge=8, le=512)
    causal: bool = True
    dtype: Dtype = Dtype.FP16
    burst: int = Field(default=4, ge=1, le=MOST_CALLS)

    @property
    def hidden(self) -> bool:
        """Whether its shape was drawn from the secret of its run: harness/problems/hidden.py."""
        return is_hidden(self.name)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, seqlen, headdim)."""
        return (self.batch, self.heads, self.seqlen, self.headdim)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of one of q, k, v, o."""
        return 2 * self.batch * self.heads * self.seqlen * self.headdim


class Limits(Frozen):
    """Deadlines in seconds, memory and disk in GiB; a worker that passes one is ended."""

    import_s: Limit = 120
    build_s: Limit = 600
    first_call_s: Limit = 180  # of a check: something may still be compiled
    burst_s: Limit = 20  # of a timed burst, and of one call's kernels while building
    again_s: Limit = 5  # of any turn, for who let a deadline pass before
    entrant_s: Limit = 600  # of all turns of one submission together,
    entrant_times: Limit = 30  # and so many times what the trusted pace took for its own
    memory_gib: Limit = 32  # of the host, one worker
    gpu_memory_gib: Limit = 64  # of the device, one worker
    disk_gib: Limit = 1  # of the cache that is kept, one entrant


class Suite(Frozen):
    """A file of configs/: the cases, how often, and beside whom."""

    name: Name
    problem: str = "attention_forward"
    device: Literal["gpu", "cpu"] = "gpu"
    cases: tuple[Case, ...] = Field(min_length=1)
    baselines: tuple[str, ...] = ()
    against: str = "sdpa_cudnn"
    blocks: int = Field(default=20, ge=1, le=MOST_BLOCKS)
    warmup_blocks: int = Field(default=2, ge=0, le=100)
    heat_ms: float = Field(default=0, ge=0, le=1000)  # trusted work before each timed burst
    hidden: int = Field(default=0, ge=0, le=8)  # shapes a headdim that each run draws by itself
    #: Of an entrant's calls back to back, behind the blocks of a case; 0: no such stretch.
    sustained_s: float = Field(default=0, ge=0, le=MOST_SUSTAINED_S)
    limits: Limits = Limits()
    description: str = ""

    @field_validator("cases")
    @classmethod
    def _unique_names(cls, cases: tuple[Case, ...]) -> tuple[Case, ...]:
        names = [case.name for case in cases]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"case names must differ; twice: {', '.join(sorted(twice))}")
        return cases

    @property
    def sha256(self) -> str:
        """Identity of what is asked: two rows compare only under the same one.

        How often it is asked, beside whom and how long one may take do not change the question:
        `--blocks 40` and a further baseline stay on the same board. Nor do hidden shapes, which
        stand beside it and in no geometric mean.
        """
        asked = {"name", "problem", "device", "cases", "against"}
        asked |= {"heat_ms"} if self.heat_ms else set()
        text = json.dumps(self.model_dump(mode="json", include=asked), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
