"""The hidden inputs of one burst, with what must come out of it."""

from dataclasses import dataclass

import torch

from harness.judge.numerics import Reference
from harness.problems.base import TensorSpec
from harness.process.cuda.arena_layout import nbytes
from harness.schema.mismatch import Draw


@dataclass
class Inputs:
    """K hidden calls: inputs [K][n], what must come out, and the arguments."""

    specs_in: tuple[TensorSpec, ...]
    specs_out: tuple[TensorSpec, ...]
    tensors: list[tuple[torch.Tensor, ...]]
    references: list[tuple[Reference, ...]]  # empty for the null kernel, which answers nothing
    kwargs: dict[str, bool | int | float | None]
    contract_limit: float
    scaled: bool = False  # the limit counts in units of the reference's largest value
    whole: bool = False  # a check, not a timed burst
    repeats: bool = False  # the last call has the inputs of the first
    draw: Draw | None = None  # what they were drawn from

    @property
    def calls(self) -> int:
        """K."""
        return len(self.tensors)

    @property
    def output_bytes(self) -> list[int]:
        """Of each output of the burst."""
        return [nbytes(spec.shape, spec.dtype) for spec in self.specs_out] * self.calls

    def which(self, index: int) -> str:
        """`output 3`, or `dk 1` where a call has several: name, then number of the call."""
        if (width := len(self.specs_out)) == 1:
            return f"output {index}"
        return f"{self.specs_out[index % width].name} {index // width}"
