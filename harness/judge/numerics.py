"""Is this output right, and whose bits are these? What that means: harness/measure/verdict.py."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from harness.schema import Error

Outputs = Sequence[torch.Tensor]

#: An honest output and SDPA's differ by two roundings, an honest output and float64 by one.
TWO_ROUNDINGS = 1.5


@dataclass(frozen=True)
class Reference:
    """What one output must be: SDPA's whole answer, float64's whole or for some secret rows."""

    contract: torch.Tensor  # [B, H, S, D], the case's dtype
    exact: torch.Tensor  # float32: [B, H, S, D], or [N, D] of the rows below
    rows: torch.Tensor | None = None  # [N] flat (batch, head, row), None when `exact` is whole
    scaled: bool = False  # differences count in units of the reference's own size

    @property
    def of_rows(self) -> bool:
        """Whether it is lse [B, H, S], whose difference is the relative one of the row's sum."""
        return self.contract.dim() == 3


def error_of(out: torch.Tensor, reference: Reference) -> Error:
    """Compare `out` [B, H, S, D] with its references; one device synchronisation.

    NaN never compares as small, so `finite` is asked first.

    A `scaled` reference (gradients: their size follows from the inputs) takes the largest
    difference in units of its own largest value, and rows shorter than the root mean square row in
    units of that.
    """
    if reference.of_rows:
        return _of_rows(out, reference.exact)
    scaled, contract = reference.scaled, reference.contract
    # One float32 tensor of the output's size and few passes over it: this is most of what a turn
    # costs.
    drift = out.to(torch.float32, copy=True).sub_(contract)
    largest = torch.linalg.vector_norm(drift, math.inf)  # NaN and infinity come through
    finite = torch.isfinite(largest).float()
    if scaled:
        largest = largest / contract.abs().max().float().clamp_min(torch.finfo(torch.float32).tiny)
    checks = [finite, largest]
    if reference.rows is None:
        checks += _relative(out.float() - reference.exact, reference.exact, scaled)
        checks += [torch.zeros((), device=out.device)] * 2
    else:
        mine = out.flatten(0, 2)[reference.rows].float()  # [N, D]
        checks += _relative(mine - reference.exact, reference.exact, scaled)
        checks += _relative(drift, contract, scaled)
    whole, max_diff, rel, row, drift_rel, drift_row = torch.stack(checks).tolist()
    return Error(
        finite=whole == 1.0
        and not any(map(math.isnan, (max_diff, rel, row, drift_rel, drift_row))),
        max_diff=max_diff,
        rel_l2=max(rel, drift_rel / TWO_ROUNDINGS),
        worst_row=max(row, drift_row / TWO_ROUNDINGS),
    )


def _of_rows(out: torch.Tensor, exact: torch.Tensor) -> Error:
    """Of `out` [B, H, S]; -inf is right where `exact` is."""
    off = torch.where(out == exact, 0.0, out - exact).abs()
    largest, rms = float(off.max()), float(off.double().square().mean().sqrt())
    return Error(finite=math.isfinite(largest), max_diff=largest, rel_l2=rms, worst_row=largest)


def _relative(
    difference: torch.Tensor, reference: torch.Tensor, scaled: bool
) -> list[torch.Tensor]:
    """[‖difference‖ / ‖reference‖, the same over the worst row]; rows are the last dimension."""
    error = torch.linalg.vector_norm(difference, dim=-1).square()
    size = torch.linalg.vector_norm(reference, dim=-1, dtype=torch.float32).square()
    floor = torch.finfo(torch.float32).tiny
    whole = (error.sum() / size.sum().clamp_min(floor)).sqrt()
    row = size.clamp_min(floor)
    if scaled:
        row = torch.maximum(row, size.mean())
    return [whole, (error / row).max().sqrt()]


def likeness(outputs: Outputs, libraries: Iterable[tuple[str, Outputs]]) -> dict[str, float]:
    """Library → share of bit-equal elements, the middle one of several results.

    Two kernels that round in different places agree bit for bit in half of the elements, a kernel
    and itself in all of them. Which kernels ran is otherwise known from a profiler, which a
    submission can see and answer with other work; a timed burst looks like every other one.

    Of three gradients one may be summed in another order each time, by atomics, and dv comes out
    much alike from anybody's kernel. outputs: one call's results, two bytes an element; libraries:
    what each makes of it.
    """
    return {
        name: median(_share(mine, its) for mine, its in zip(outputs, theirs, strict=True))
        for name, theirs in libraries
    }


def _share(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    same = mine.contiguous().view(torch.int16) == theirs.contiguous().view(torch.int16)
    return float(same.float().mean())
