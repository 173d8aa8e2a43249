"""Which kind of work ran: kernels of one's own, a library's, or both. Pure.

Two witnesses. The names come from a profiler inside the untrusted process: they are that process's
word. The likeness comes from the judge, who held results of timed bursts beside those of libraries
on the same inputs (harness/judge/numerics.py). Both decide the class that a row is shown in, never
whether its time is true.

Shares of bit-equal elements on one H200, fp16, causal, headdim 64, 128 and 256, 4 to 8 heads of
4096 to 8192 rows; of a backward the middle one of dq, dk, dv:
    a library's kernel and itself                    1.000
    with v doubled and the result halved             0.9995 and more
    FlashAttention-3 and -4 beside PyTorch's flash   forward 0.997, 0.860; backward 0.985
    own kernels beside any library                   forward 0.50 to 0.975; backward 0.44 to 0.985
A scale that is 1.0001 times the right one makes another 0.50 of cuDNN's own: who takes such trouble
is not found this way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

CUSTOM, LIBRARY, MIXED, UNKNOWN = "custom", "library", "mixed", "unknown"

#: Attention and matrix products of libraries, by the names they launch under.
LIBRARY_WORK = re.compile(
    r"pytorch_flash|flash_fwd|flash_bwd|flash::|FlashAttnFwd|fmha_cutlass|MemEffAttention"
    r"|cudnn_|cublas|^nvjet_|sm\d\d_xmma|(ampere|volta|turing|hopper)_\w*gemm|gemvx?::|gemv2"
    r"|cutlass::|cutlass_\d\d_|flashinfer|PrefillWithKVCache|xformers|sageattn",
    re.IGNORECASE,
)
#: Housekeeping that anybody's wrapper does: it makes nobody's work a library's.
HOUSEKEEPING = re.compile(
    r"^(Memcpy|Memset)|elementwise_kernel|fill_kernel|FillFunctor|vectorized_elementwise"
    r"|copy_kernel|direct_copy|CatArrayBatchedCopy|index_elementwise|at::native::",
    re.IGNORECASE,
)
#: Sums and softmaxes of PyTorch itself: real work, done by the library.
TORCH_WORK = re.compile(r"softmax|reduce_kernel|triu_tril|at::native::.*(norm|cumsum|scan)", re.I)


#: Results that agree with a library's in this share of their elements are that library's.
SAME_BITS = 0.999


def same_bits_as(likeness: Mapping[str, float]) -> str:
    """The library whose results a submission's timed results were, bit for bit; empty if none."""
    return next((name for name, share in likeness.items() if share >= SAME_BITS), "")


def classify(names: Iterable[str], likeness: Mapping[str, float] = MappingProxyType({})) -> str:
    """Return custom, library, mixed or unknown for the kernels of one verified call."""
    if same_bits_as(likeness):
        return LIBRARY
    own = library = 0
    for name in names:
        if LIBRARY_WORK.search(name) or TORCH_WORK.search(name):
            library += 1
        elif not HOUSEKEEPING.search(name):
            own += 1
    if own and library:
        return MIXED
    if library:
        return LIBRARY
    return CUSTOM if own else UNKNOWN
