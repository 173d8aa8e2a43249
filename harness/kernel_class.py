"""Which kind of work ran: kernels of one's own, a library's, or both. Pure: names in, class out.

The names come from a profiler inside the untrusted process. They decide the class that a row is
shown in, never whether its time is true.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

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
    r"^(Memcpy|Memset)|elementwise_kernel|fill_kernel|FillFunctor|vectorized_elementwise|copy_kernel"
    r"|direct_copy|CatArrayBatchedCopy|index_elementwise|at::native::",
    re.IGNORECASE,
)
#: Sums and softmaxes of PyTorch itself: real work, done by the library.
TORCH_WORK = re.compile(r"softmax|reduce_kernel|triu_tril|at::native::.*(norm|cumsum|scan)", re.I)


def classify(names: Iterable[str]) -> str:
    """Return custom, library, mixed or unknown for the kernels of one verified call."""
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
