"""What the torch side of a problem must offer, as a module."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from harness.problems.base import Kwargs
from harness.schema import Case


class Tensors(Protocol):
    """Called by the judge; by the builder only for inputs of its own."""

    def make_inputs(
        self,
        case: Case,
        distribution: str,
        generator: torch.Generator,
        device: torch.device,
        kwargs: Kwargs,
    ) -> tuple[torch.Tensor, ...]:
        """Arguments in `Problem.inputs`' order, [batch, heads, ...], for a call with `kwargs`."""

    def contract(self, inputs: Sequence[torch.Tensor], kwargs: Kwargs) -> tuple[torch.Tensor, ...]:
        """Results in order, by the library that the published bar is measured against."""

    def exact(self, inputs: Sequence[torch.Tensor], kwargs: Kwargs) -> tuple[torch.Tensor, ...]:
        """Results in order, by definition in float64, as float32."""

    def exact_rows(
        self, inputs: Sequence[torch.Tensor], kwargs: Kwargs, generator: torch.Generator
    ) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
        """The same for some rows that `generator` draws, a pair for each result, in order.

        The pair: their flat indices [N] into the result's [batch * heads * rows], on the inputs'
        device, and what they hold [N, headdim].
        """

    def libraries(
        self, inputs: Sequence[torch.Tensor], kwargs: Kwargs
    ) -> Iterator[tuple[str, tuple[torch.Tensor, ...]]]:
        """(name, results in order) of every library kernel that PyTorch has for this call."""
