"""Which elements of an output are wrong: asked of one that has failed, by the judge alone."""

import ctypes
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np  # torch's own unravel_index imports sympy, for half a second
import torch

from harness.judge.inputs import Inputs
from harness.schema import Error
from harness.schema.mismatch import ALL_WRONG, MOST_LINES, MOST_MARKS, Mismatch

Fields = dict[str, Any]
Picture = tuple[list[str], int, int]  # lines, heads a line, rows a mark
ROUNDING = 1e-9  # of a share that is a whole number of ninths


def located(
    inputs: Inputs, errors: Sequence[Error], bad: int, out: torch.Tensor
) -> Mismatch | None:
    """Where output `bad` of a burst is wrong; None where no memory is left to look."""
    if inputs.draw is None:
        return None
    width, limit = len(inputs.specs_out), inputs.contract_limit
    call, number = divmod(bad, width)
    wrong = [i for i, e in enumerate(errors) if not e.finite or not e.max_diff < limit]
    reference = inputs.references[call][number]
    try:
        each = (out, reference.contract)
        if reference.of_rows:  # one column
            each = (out[..., None], reference.contract[..., None])
        found = locate(*each, limit, reference.scaled)
        sha256 = digest(inputs.tensors[call])
    except torch.OutOfMemoryError:
        return None
    if found is None:
        return None
    return Mismatch(
        draw=inputs.draw,
        output=inputs.specs_out[number].name,
        call=call,
        wrong_calls=len({i // width for i in wrong}),
        wrong_outputs=tuple(inputs.specs_out[n].name for n in sorted({i % width for i in wrong})),
        inputs_sha256=sha256,
        **found,
    )


def locate(out: torch.Tensor, contract: torch.Tensor, limit: float, scaled: bool) -> Fields | None:
    """Elements of `out` [B, H, S, D] that are not within `limit` of `contract`, as of a Mismatch.

    If some are not finite, only those count. `scaled`: the limit is in units of the reference's
    largest value, as in harness/judge/numerics.py.
    """
    bad = ~torch.isfinite(out)
    diff = out.to(torch.float32, copy=True).sub_(contract).abs_()
    if not bad.any():
        unit = float(contract.abs().max()) if scaled else 1.0
        bad = ~(diff < limit * unit)  # NaN is not within
    if not bad.any():
        return None
    diff = diff.masked_fill_(~bad, -1.0).nan_to_num_(nan=torch.inf)
    flat = int(diff.flatten().argmax())
    if not torch.isfinite(out.flatten()[flat]):
        flat = int(bad.flatten().int().argmax())  # of equals the first
    index = [int(n) for n in np.unravel_index(flat, tuple(out.shape))]
    of_rows = bad.flatten(0, 1).sum(-1)  # [B * H, S]
    heads, rows, columns = of_rows.any(1), of_rows.any(0), bad.flatten(0, 2).any(0)
    lines, heads_a_line, rows_a_mark = picture(of_rows, out.shape[-1])
    return {
        "wrong": int(bad.sum()),
        "elements": out.numel(),
        "index": index,
        "expected": float(contract[tuple(index)]),
        "got": float(out[tuple(index)]),
        "heads": _span(heads),
        "wrong_heads": int(heads.sum()),
        "rows": _span(rows),
        "wrong_rows": int(rows.sum()),
        "columns": _span(columns),
        "picture": lines,
        "heads_a_line": heads_a_line,
        "rows_a_mark": rows_a_mark,
    }


def picture(of_rows: torch.Tensor, headdim: int) -> Picture:
    """Wrong elements of rows [heads, S] → lines of digits: 0 none, 9 all, between by share."""
    heads, seqlen = of_rows.shape
    high, wide = -(-heads // MOST_LINES), -(-seqlen // MOST_MARKS)
    whole = of_rows[None].double()
    share = torch.nn.functional.avg_pool2d(whole, (high, wide), ceil_mode=True)[0] / headdim
    level = (share * ALL_WRONG + ROUNDING).long().clamp_min(1).masked_fill(share == 0, 0)
    return ["".join(map(str, line)) for line in level.tolist()], high, wide


def digest(tensors: Sequence[torch.Tensor]) -> str:
    """SHA-256 of the tensors' bytes, one after the other."""
    found = hashlib.sha256()
    for tensor in tensors:
        here = tensor.contiguous().cpu()
        found.update((ctypes.c_char * here.nbytes).from_address(here.data_ptr()))
    return found.hexdigest()


def _span(wrong: torch.Tensor) -> list[int]:
    """First and last number that is true; there is one."""
    where = wrong.nonzero()
    return [int(where[0]), int(where[-1])]
