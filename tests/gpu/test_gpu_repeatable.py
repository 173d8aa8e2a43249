"""cuda_hopper_backward_deterministic: the same bits in 1,000 calls at each official shape, on every card that is here."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from harness.catalog.suites import load_suite
from harness.schema import Case

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
ENTRY = ROOT / "submissions" / "cuda_hopper_backward_deterministic" / "submission.py"
CASES = load_suite("fa3_bwd", ROOT / "configs").cases
CALLS, NOISE_FLOATS = 1000, 16 << 20


@pytest.fixture(scope="module")
def backward() -> Any:
    spec = importlib.util.spec_from_file_location("deterministic", ENTRY)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.custom_attention_backward


def digest(backward: Any, case: Case, card: int) -> str:
    """Of the three gradients, after CALLS calls that all gave them; noise in the L2 between some."""
    device = torch.device("cuda", card)
    generator = torch.Generator(device).manual_seed(7)
    shape = (case.batch, case.heads, case.seqlen, case.headdim)
    q, k, v, do = (torch.randn(shape, device=device, generator=generator).half() for _ in range(4))
    forward = torch.ops.aten._scaled_dot_product_flash_attention
    o, lse = (x.contiguous() for x in forward(q, k, v, 0.0, case.causal, False)[:2])
    first = [x.view(torch.int16).clone() for x in backward(q, k, v, o, lse, do, case.causal)]
    noise = torch.empty(NOISE_FLOATS, device=device)
    others = torch.zeros(3, dtype=torch.int64, device=device)
    for call in range(CALLS):
        if call % 3 == 0:
            noise.fill_(call)
        found = backward(q, k, v, o, lse, do, case.causal)
        for i, (mine, x) in enumerate(zip(first, found, strict=True)):
            others[i] += (x.view(torch.int16) != mine).any()
    assert others.tolist() == [0, 0, 0], f"calls with other bits in dq, dk, dv on card {card}"
    assert all(bool(x.any()) for x in first), "a gradient of zeros repeats itself, too"
    return hashlib.sha256(b"".join(x.cpu().numpy().tobytes() for x in first)).hexdigest()[:16]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_call_on_every_card_gives_the_same_bits(backward: Any, case: Case) -> None:
    digests = {card: digest(backward, case, card) for card in range(torch.cuda.device_count())}
    print(case.name, digests)
    assert len(set(digests.values())) == 1, digests
