"""Attention forward: o = softmax(q kᵀ · sm_scale [+ causal mask]) v, tensors (batch, heads, seqlen, headdim).

FLOPs follow FlashAttention-2/3: 4 · B · S² · H · D, halved when causal (not the exact triangle). With
S_k keys for S queries, as in the `flops` of its hopper/benchmark_attn.py: 4 · B · S · S_k · H · D, and
causal, where the last query sees every key, S_k - S/2 in place of S_k. H is the heads of q: that
groups of them share a head of k and v saves bytes, not FLOPs.
"""

from __future__ import annotations

import math

from harness.problems.base import Kwargs, Probe, TensorSpec, Tolerances
from harness.problems.near_shapes import claimed, masks, near
from harness.schema import Case, Claims, Dtype

#: fp16: twice and more what every honest library kernel was measured at; FP8, INT8 and skipped keys
#: start at 8 times these limits. bf16 keeps 8 bits of mantissa instead of 11.
LIMITS = {
    Dtype.FP16: Tolerances(contract=1e-2, rel_l2=1e-3, worst_row=2e-3),
    Dtype.BF16: Tolerances(contract=4e-2, rel_l2=5e-3, worst_row=1e-2),
}
ODD_SCALE = 0.7310585  # times 1/sqrt(headdim): nobody hard-codes it


class AttentionForward:
    """The interface of the benchmark task that this project began from (docs/systems.md), to the letter."""

    name: str = "attention_forward"
    function: str = "custom_attention_forward"
    parameters: tuple[str, ...] = ("q", "k", "v", "causal", "sm_scale")
    tensors_module: str = "harness.problems.attention_forward_tensors"
    suites: tuple[str, str] = ("fa3", "smoke")

    def inputs(self, case: Case) -> tuple[TensorSpec, ...]:
        """q, k, v; without its row of q no row of o can be begun."""
        dtype = case.dtype.value
        q = TensorSpec("q", case.shape, dtype, withheld=True)
        return (q, *(TensorSpec(x, case.kv_shape, dtype) for x in "kv"))

    def outputs(self, case: Case) -> tuple[TensorSpec, ...]:
        """O."""
        return (TensorSpec("o", case.shape, case.dtype.value),)

    def kwargs(self, case: Case) -> Kwargs:
        """The timed call uses the default scale."""
        return {"causal": case.causal, "sm_scale": None}

    def flops(self, case: Case) -> float:
        """4 · B · S · S_k · H · D; causal counts S_k - S/2 keys for S_k."""
        seqlen_k = case.kv_shape[2]
        keys = seqlen_k - case.seqlen / 2 if case.causal else seqlen_k
        return 4.0 * case.batch * case.seqlen * keys * case.heads * case.headdim

    def io_bytes(self, case: Case) -> int:
        """Q, k, v read once, o written once."""
        return 2 * case.q_bytes + 2 * case.kv_bytes

    def exponentials(self, case: Case) -> float:
        """One for every score."""
        return self.flops(case) / (4 * case.headdim)

    def limits(self, dtype: Dtype) -> Tolerances:
        """See LIMITS."""
        return LIMITS[dtype]

    def probes(self, case: Case, claims: Claims) -> list[Probe]:
        """Small shapes near `case`: odd scale, both masks, stress inputs, lengths off the tile."""
        flags = masks(case, claims)
        usual = 1.0 / math.sqrt(case.headdim)
        base = near(case, claims, heads=3, seqlen=min(256, case.seqlen))
        probes = [
            Probe(
                base.model_copy(update={"causal": flag}), kind, {"causal": flag, "sm_scale": scale}
            )
            for flag in flags
            for kind, scale in (("normal", usual * ODD_SCALE), ("large_logits", None))
        ]
        main = base.model_copy(update={"causal": flags[0]})
        probes += [
            Probe(main, kind, {"causal": flags[0], "sm_scale": None})
            for kind in ("needle", "offset_v", "tiny_scale", "rising")
        ]
        lengths = [n for n in (1, 17, 127, 129, 333) if n <= max(129, case.seqlen)]
        others = [near(case, claims, heads=1, seqlen=n, batch=2) for n in lengths]
        ragged = {shape.seqlen: shape for shape in others if shape.seqlen >= claims.seqlen_min}
        probes += [_usual(ragged[seqlen], flags[-1]) for seqlen in sorted(ragged)]
        probes += [_usual(shape, flags[0]) for shape in claimed(case, claims, flags[0])]
        long = near(case, claims, heads=1, seqlen=min(1000, 2 * case.seqlen - 1))
        long = long.model_copy(update={"causal": flags[0]})
        probes.append(
            Probe(long, "large_logits", {"causal": flags[0], "sm_scale": usual * ODD_SCALE})
        )
        return probes

    def audits(self, case: Case) -> list[Probe]:
        """The timed shape, other values: a kernel that sniffs its inputs meets these unannounced."""
        kinds = ("large_logits", "needle", "offset_v")
        return [Probe(case, kind, self.kwargs(case)) for kind in kinds]


def _usual(shape: Case, causal: bool) -> Probe:
    kwargs = {"causal": causal, "sm_scale": None}
    return Probe(shape.model_copy(update={"causal": causal}), "normal", kwargs)


PROBLEM = AttentionForward()
