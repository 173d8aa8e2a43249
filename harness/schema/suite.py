"""What is measured: cases, and the limits of a run."""

import hashlib
import json
import math
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from harness.schema.common import MOST_BLOCKS, MOST_CALLS, Dtype, Frozen, Limit, Name, Shaped

MOST_SEQLEN, MOST_HEADS = 1 << 24, 1 << 16
MOST_SUSTAINED_S = 60
MOST_SEQUENCES = 4096  # of all packed rows of a suite
MOST_CASES = 128  # 66 KiB with those lengths: with a manifest one message, harness/process/wire.py
MOST_HIDDEN = 64  # shapes of a run
#: Of a case that a run draws from its secret; no suite may use it.
HIDDEN_PREFIX = "hidden_"


def is_hidden(config: str) -> bool:
    """Whether a case of this name was drawn from the secret of its run."""
    return config.startswith(HIDDEN_PREFIX)


class Case(Shaped):
    """One shape of a problem; `burst` is the number of calls in one sample.

    kv_heads: heads of k and v, which groups of query heads share; unset, as many as `heads`.
    seqlen_k: keys, where they are not as many as queries. Causal is bottom-right then: query i
        sees key j if j <= i + seqlen_k - seqlen.
    seqlens: lengths of sequences packed one behind the other in `seqlen` tokens, k as q. They are
        told by cu_seqlens_q and cu_seqlens_k; each call has them in another, secret order.

    What is unset is not written, so that records and hashes of older suites stay what they were.
    """

    name: Name
    batch: int = Field(ge=1, le=65536)
    heads: int = Field(ge=1, le=MOST_HEADS)
    seqlen: int = Field(ge=1, le=MOST_SEQLEN)
    headdim: int = Field(ge=8, le=512)
    causal: bool = True
    dtype: Dtype = Dtype.FP16
    burst: int = Field(default=4, ge=1, le=MOST_CALLS)
    kv_heads: int | None = Field(default=None, ge=1, le=MOST_HEADS)
    seqlen_k: int | None = Field(default=None, ge=1, le=MOST_SEQLEN)
    seqlens: tuple[Annotated[int, Field(ge=1, le=MOST_SEQLEN)], ...] = Field(
        default=(), max_length=MOST_SEQUENCES
    )

    @field_validator("kv_heads")
    @classmethod
    def _groups(cls, kv_heads: int | None, info: ValidationInfo) -> int | None:
        heads = info.data.get("heads")
        if kv_heads and heads and heads % kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads; {heads} is none of {kv_heads}")
        return None if kv_heads == heads else kv_heads

    @field_validator("seqlen_k")
    @classmethod
    def _sees_a_key(cls, seqlen_k: int | None, info: ValidationInfo) -> int | None:
        seqlen, causal = info.data.get("seqlen"), info.data.get("causal", True)
        if seqlen_k and seqlen and causal and seqlen > seqlen_k:
            raise ValueError(
                f"the first {seqlen - seqlen_k} of {seqlen} queries would see no key; "
                "with causal: true write seqlen_k from seqlen on"
            )
        return None if seqlen_k == seqlen else seqlen_k

    @field_validator("seqlens")
    @classmethod
    def _fill_the_row(cls, seqlens: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        told = info.data
        if seqlens and sum(seqlens) != told.get("seqlen", sum(seqlens)):
            raise ValueError(f"they have {sum(seqlens)} tokens; write seqlen: {sum(seqlens)}")
        if seqlens and told.get("batch", 1) != 1:
            raise ValueError(f"packed sequences are one row; write batch: 1, not {told['batch']}")
        if seqlens and told.get("seqlen_k"):
            raise ValueError("packed sequences have as many keys as queries; leave out seqlen_k")
        return seqlens

    @property
    def hidden(self) -> bool:
        """Whether its shape was drawn from the secret of its run: harness/problems/shapes.py."""
        return is_hidden(self.name)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, seqlen, headdim) of q and o."""
        return (self.batch, self.heads, self.seqlen, self.headdim)

    @property
    def kv_shape(self) -> tuple[int, int, int, int]:
        """(batch, kv_heads, seqlen_k, headdim) of k and v."""
        kv_heads, seqlen_k = self.kv_heads or self.heads, self.seqlen_k or self.seqlen
        return (self.batch, kv_heads, seqlen_k, self.headdim)

    @property
    def question(self) -> tuple[object, ...]:
        """Equal for the same shape, mask and type: neither name nor calls of a burst matter."""
        return (self.shape, self.kv_shape, self.seqlens, self.causal, self.dtype)

    @property
    def lengths(self) -> tuple[tuple[int, int], ...]:
        """(queries, keys) of each sequence; one where nothing is packed."""
        return tuple((n, n) for n in self.seqlens) or ((self.seqlen, self.kv_shape[2]),)

    @property
    def q_bytes(self) -> int:
        """Bytes of one of q, o."""
        return 2 * math.prod(self.shape)

    @property
    def kv_bytes(self) -> int:
        """Bytes of one of k, v."""
        return 2 * math.prod(self.kv_shape)

    @property
    def burst_bytes(self) -> int:
        """Bytes of q, k, v and o, or as much as a backward's, in one burst."""
        return 2 * self.burst * (self.q_bytes + self.kv_bytes)


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
    cases: tuple[Case, ...] = Field(min_length=1, max_length=MOST_CASES)
    baselines: tuple[str, ...] = ()
    against: str = "sdpa_cudnn"
    blocks: int = Field(default=20, ge=1, le=MOST_BLOCKS)
    warmup_blocks: int = Field(default=2, ge=0, le=100)
    heat_ms: float = Field(default=0, ge=0, le=1000)  # trusted work before each timed burst
    hidden: int = Field(default=0, ge=0, le=16)  # shapes a headdim that each run draws by itself
    #: Of an entrant's calls back to back, behind the blocks of a case; 0: no such stretch.
    sustained_s: float = Field(default=0, ge=0, le=MOST_SUSTAINED_S)
    limits: Limits = Limits()
    description: str = ""

    @field_validator("cases")
    @classmethod
    def _unique_names(cls, cases: tuple[Case, ...]) -> tuple[Case, ...]:
        names = [case.name for case in cases]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"case names must differ; twice: {', '.join(sorted(twice))}")
        if (packed := sum(len(case.seqlens) for case in cases)) > MOST_SEQUENCES:
            raise ValueError(f"{packed} packed sequences; write at most {MOST_SEQUENCES} in all")
        return cases

    @field_validator("hidden")
    @classmethod
    def _one_message(cls, hidden: int, info: ValidationInfo) -> int:
        if (drawn := hidden * len({c.headdim for c in info.data.get("cases", ())})) > MOST_HIDDEN:
            raise ValueError(f"{drawn} for all headdims together; at most {MOST_HIDDEN}")
        return hidden

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
