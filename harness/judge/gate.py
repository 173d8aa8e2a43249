"""Is this output right? Numbers only; what they mean for the row is decided in harness/verdict.py."""

from __future__ import annotations

from dataclasses import dataclass

import torch

#: An honest output and SDPA's differ by two roundings, an honest output and float64 by one.
TWO_ROUNDINGS = 1.5


@dataclass(frozen=True)
class Reference:
    """What one output must be: SDPA's whole answer, and float64's for all or for one secret head."""

    contract: torch.Tensor  # [B, H, S, D], the case's dtype
    exact: torch.Tensor  # float32: [B, H, S, D], or [S, D] of the head below
    head: int | None = None  # flat (batch, head) index, None when `exact` is whole
    scaled: bool = False  # differences count in units of the reference's own size


@dataclass(frozen=True)
class Grade:
    """Numerics of one output; NaN never compares as small, so `finite` is asked first."""

    finite: bool
    max_diff: float
    rel_l2: float
    worst_row: float


def grade(out: torch.Tensor, reference: Reference) -> Grade:
    """Compare `out` [B, H, S, D] with its references; one device synchronisation.

    A `scaled` reference (gradients: their size follows from the inputs) takes the largest difference
    in units of its own largest value, and rows shorter than the root mean square row in units of that.
    """
    scaled = reference.scaled
    got = out.float()
    contract = reference.contract.float()
    drift = got - contract
    largest = drift.abs().max()
    if scaled:
        largest = largest / contract.abs().max().clamp_min(torch.finfo(torch.float32).tiny)
    checks = [torch.isfinite(got).all().float(), largest]
    if reference.head is None:
        checks += _relative(got - reference.exact, reference.exact, scaled)
        checks += [torch.zeros((), device=out.device)] * 2
    else:
        mine = got.flatten(0, 1)[reference.head]  # [S, D]
        checks += _relative(mine - reference.exact, reference.exact, scaled)
        checks += _relative(drift, contract, scaled)
    finite, max_diff, rel, row, drift_rel, drift_row = torch.stack(checks).tolist()
    return Grade(
        finite=finite == 1.0,
        max_diff=max_diff,
        rel_l2=max(rel, drift_rel / TWO_ROUNDINGS),
        worst_row=max(row, drift_row / TWO_ROUNDINGS),
    )


def _relative(
    difference: torch.Tensor, reference: torch.Tensor, scaled: bool
) -> list[torch.Tensor]:
    """[‖difference‖ / ‖reference‖, the same over the worst row]; rows are the last dimension."""
    error = difference.square().sum(-1)
    size = reference.square().sum(-1)
    floor = torch.finfo(torch.float32).tiny
    whole = (error.sum() / size.sum().clamp_min(floor)).sqrt()
    row = size.clamp_min(floor)
    if scaled:
        row = torch.maximum(row, size.mean())
    return [whole, (error / row).max().sqrt()]


def worst(grades: list[Grade]) -> Grade:
    """The worst of each number over a burst."""
    return Grade(
        finite=all(g.finite for g in grades),
        max_diff=max(g.max_diff for g in grades),
        rel_l2=max(g.rel_l2 for g in grades),
        worst_row=max(g.worst_row for g in grades),
    )
