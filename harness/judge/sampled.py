"""Words of the outputs, read the moment a worker says that they are done.

Copying a burst's outputs takes hundreds of microseconds. A worker that says "done" too early could
still compute the last call while the first call's outputs are copied. So some words of every
output, at secret positions, are read first, within microseconds, and what is copied afterwards must
agree with them. Where all outputs of a burst lack one row in a thousand, 65,536 words miss that
with a chance of e^-65; where one of ten does, its tenth of the words misses it in 1.4 of 1,000.
"""

import random
from collections.abc import Sequence

import torch

WORDS = 65_536  # of a burst


class Sampled:
    """Where the outputs are said to lie, and some of their words at that moment."""

    def __init__(self, room: torch.Tensor, table: torch.Tensor, sizes: Sequence[int]) -> None:
        """Draw the positions.

        room: uint8, all bytes of the outputs' arena.
        table: int64 [outputs], where the worker's stream stores each output's offset in bytes.
        sizes: bytes of each output.
        """
        self._room, self._table = room.view(torch.int16), table
        generator = torch.Generator(room.device).manual_seed(random.SystemRandom().getrandbits(63))
        self._each = max(1, WORDS // len(sizes))  # words of one output
        inside = [
            torch.randint(0, size // 2, (self._each,), generator=generator, device=room.device)
            for size in sizes
        ]
        self._inside = torch.cat(inside)  # in words of two bytes
        self._which = torch.arange(len(sizes), device=room.device).repeat_interleave(self._each)
        self._told = torch.zeros_like(table)
        self._at = torch.zeros_like(self._inside)
        self._words = torch.zeros_like(self._inside, dtype=torch.int16)
        self.take()  # queued for the first time while nobody waits

    def take(self) -> None:
        """Queue the reading: allocates nothing. An offset out of bounds reads another word."""
        self._told.copy_(self._table)
        torch.index_select(self._told, 0, self._which, out=self._at)
        self._at.bitwise_right_shift_(1).add_(self._inside).clamp_(0, self._room.numel() - 1)
        torch.take(self._room, self._at, out=self._words)

    @property
    def offsets(self) -> list[int]:
        """Bytes from the room's start to each output, as told at the reading; unchecked."""
        return [int(offset) for offset in self._told.tolist()]

    def words(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Of one output: positions [words], in words of two bytes, and what was there, int16."""
        mine = slice(number * self._each, (number + 1) * self._each)
        return self._inside[mine], self._words[mine]

    def differing(self, held: Sequence[torch.Tensor]) -> int | None:
        """The first of `held` (uint8, one tensor an output) that is not what was read, or None."""
        for number, tensor in enumerate(held):
            inside, then = self.words(number)
            if not torch.equal(tensor.view(torch.int16)[inside], then):
                return number
        return None
