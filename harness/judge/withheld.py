"""Words of the inputs that stay wrong until the clock runs: an early start gives wrong answers.

The copies of a burst's inputs take longer than a call. Who starts on the first call's while the
last call's are still being copied would gain part of that, unseen. So one word of every row of the
arguments that a problem names (TensorSpec.withheld) is copied with its sign flipped, and put right
by one kernel, the last thing before the worker is told to start. Positions are secret and new in
every burst: only a backward's o and lse, made of the right q, tell an early reader which they are.
"""

import random
from collections.abc import Sequence

import torch

from harness.process.cuda.driver import elapsed_ms

SIGN_BIT = -0x8000  # of a 16-bit float, as the int16 that torch can xor


class Withheld:
    """One wrong word in each row of the judge's tensors, until `restore`; of copies, `reveal`."""

    def __init__(
        self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], room: torch.Tensor
    ) -> None:
        """Flip the words in the first of each pair.

        pairs: the judge's own tensor, contiguous and of two-byte elements, and where its copy will
            lie; the same tensor may stand in several pairs.
        room: uint8, all bytes of the arena that the copies lie in.
        """
        self._room = room.view(torch.int16)
        self._own: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        generator = torch.Generator(room.device).manual_seed(random.SystemRandom().getrandbits(63))
        nowhere = torch.empty(0, dtype=torch.int64, device=room.device)
        where, right = [nowhere], [nowhere.to(torch.int16)]
        for tensor, copy in pairs:
            if id(tensor) not in self._own:
                self._own[id(tensor)] = self._flip(tensor, generator)
            _, at, words = self._own[id(tensor)]
            where.append(at + (copy.data_ptr() - room.data_ptr()) // 2)
            right.append(words)
        self._where = torch.cat(where)
        self._right = torch.cat(right)

    @staticmethod
    def _flip(
        tensor: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(all words of `tensor`, positions [rows], the right words [rows]); flips them."""
        words = tensor.view(torch.int16).view(-1)
        width = tensor.shape[-1]
        rows = words.numel() // width
        column = torch.randint(0, width, (rows,), generator=generator, device=words.device)
        at = torch.arange(rows, device=words.device).mul_(width).add_(column)
        right = words[at]
        words.scatter_(0, at, right ^ SIGN_BIT)
        return words, at, right

    def reveal(self) -> None:
        """Queue the one kernel that makes the copies right."""
        self._room.scatter_(0, self._where, self._right)

    def reveal_ms(self) -> float:
        """The same, timed behind what is queued."""
        return elapsed_ms(self.reveal)

    def restore(self) -> None:
        """Make the judge's own tensors right again."""
        for words, at, right in self._own.values():
            words.scatter_(0, at, right)
