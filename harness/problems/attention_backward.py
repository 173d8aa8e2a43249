"""Attention backward: dq, dk, dv of o = softmax(q kᵀ · sm_scale [+ causal mask]) v for a given do.

The forward's o and its natural-log row sums lse (float32) are inputs; the judge makes them. FLOPs
follow FlashAttention-2/3: 2.5 times the forward (five matrix products instead of two; the
recomputed scores count, because every fused backward recomputes them). dk and dv of a head that
several query heads share are the sums over its group.
"""

import math

from harness.problems import attention_forward, base
from harness.problems.base import Kwargs, Probe, Problem, TensorSpec, Tolerances, probe_of
from harness.problems.shapes import masks, near, others
from harness.schema import Case, Claims, Dtype

#: A gradient has no scale of its own: `scaled` measures its largest difference in units of SDPA's
#: largest value, and a row shorter than the usual row in units of the usual row (query 0 has dq = 0
#: exactly).
#:
#: Chosen on kernels with P and dS rounded to the inputs' type and fp32 sums, simulated, and on
#: PyTorch's CPU flash backward (`python benchmarks/numerics.py backward`: all distributions,
#: headdim 64 to 256, short lengths; `early` is the worst row that the many heads of the official
#: shapes bring):
#:                       whole         worst row     largest       early
#:   honest fp16         to 8.0e-4     to 3.8e-3     to 1.7e-3     to 8.9e-3
#:   bf16 inside, fp16   from 1.6e-3   from 2.8e-3   from 1.4e-3
#:   fp8 P and dS        from 2.3e-2   from 5.1e-2   from 2.4e-2
#:   honest bf16         to 1.2e-2     to 3.4e-2     to 8.4e-3     to 5.6e-2
#: Early rows of dq are what fixes worst_row: with few keys dP and delta nearly cancel, and the
#: error of delta (a sum over the rounded o) stays. A lost or foreign row is off by 1,
#: by less the shorter it is: late rows of causal dk and dv are.
LIMITS = {
    Dtype.FP16: Tolerances(contract=1e-2, rel_l2=1.4e-3, worst_row=3e-2, scaled=True),
    Dtype.BF16: Tolerances(contract=4e-2, rel_l2=2e-2, worst_row=2.5e-1, scaled=True),
}
FLOPS_OVER_FORWARD = 2.5
LENGTHS = (17, 127, 129, 333)  # not 1: dq and dk are zero there and any relative error is noise
FEWEST = 17  # queries of a probe: on few rows dq and dk nearly cancel under large logits


class AttentionBackward(Problem):
    """Gradients by the interface that FlashAttention's low-level functions have."""

    name: str = "attention_backward"
    function: str = "custom_attention_backward"
    parameters: tuple[str, ...] = ("q", "k", "v", "o", "lse", "do", "causal", "sm_scale")
    tensors_module: str = "harness.problems.attention_backward_tensors"
    suites: tuple[str, str] = ("fa3_bwd", "smoke_bwd")
    gives_lse: bool = False
    tolerances = LIMITS
    audited = ("large_logits", "soft_needle", "spiky_do")

    def inputs(self, case: Case) -> tuple[TensorSpec, ...]:
        """q, k, v, o, lse [B, H, S] in float32, do; o and lse tell which words of q are wrong."""
        dtype = case.dtype.value
        q = TensorSpec("q", case.shape, dtype, withheld=True)
        k, v = (TensorSpec(x, case.kv_shape, dtype) for x in "kv")
        o, do = TensorSpec("o", case.shape, dtype), TensorSpec("do", case.shape, dtype, alone=True)
        lse = TensorSpec("lse", case.shape[:3], "fp32")
        return (q, k, v, o, lse, do, *attention_forward.sequence_specs(case))

    def outputs(self, case: Case, _: Kwargs = base.NO_KWARGS) -> tuple[TensorSpec, ...]:
        """The gradients, in the inputs' type and shapes."""
        shapes = {"dq": case.shape, "dk": case.kv_shape, "dv": case.kv_shape}
        return tuple(TensorSpec(name, shape, case.dtype.value) for name, shape in shapes.items())

    def flops(self, case: Case) -> float:
        """2.5 times the forward: 10 · B · S² · H · D, halved when causal, where S_k = S."""
        return FLOPS_OVER_FORWARD * attention_forward.PROBLEM.flops(case)

    def io_bytes(self, case: Case) -> int:
        """q, k, v, o, do and lse read once; dq, dk, dv written once."""
        lse_bytes = 4 * case.batch * case.heads * case.seqlen
        return 4 * case.q_bytes + 4 * case.kv_bytes + lse_bytes

    def exponentials(self, case: Case) -> float:
        """One for every score, which is computed again."""
        return attention_forward.PROBLEM.exponentials(case)

    def probes(self, case: Case, claims: Claims) -> list[Probe]:
        """Small shapes near `case`: odd scale, both masks, stress inputs, lengths off the tile."""
        flags = masks(case, claims)
        odd = attention_forward.ODD_SCALE / math.sqrt(case.headdim)
        small = near(case, claims, heads=3, seqlen=max(FEWEST, min(256, case.seqlen)))
        probes = [probe_of(small, "normal", flag, odd) for flag in flags]
        probes += [probe_of(small, "large_logits", flag) for flag in flags]
        stress = ("soft_needle", "offset_v", "tiny_scale", "spiky_do")
        probes += [probe_of(small, kind, flags[0]) for kind in stress]
        lengths = [n for n in LENGTHS if n <= max(129, small.seqlen)]
        uneven = [near(case, claims, heads=3, seqlen=n, batch=2) for n in lengths]
        ragged = {shape.seqlen: shape for shape in uneven if not claims.refusal(shape)}
        probes += [probe_of(ragged[seqlen], "normal", flags[-1]) for seqlen in sorted(ragged)]
        probes += [probe_of(x, "normal", flags[0]) for x in others(case, claims, flags[0])]
        long = near(case, claims, heads=3, seqlen=max(FEWEST, min(1000, 2 * case.seqlen - 1)))
        return [*probes, probe_of(long, "large_logits", flags[0], odd)]


PROBLEM = AttentionBackward()
