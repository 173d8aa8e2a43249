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
    r"pytorch_flash|flash_fwd|flash_bwd|flash_attn|fmha|mem_eff|_efficient_attention"
    r"|cudnn|cublas|cutlass(?!_own)|nvjet|ampere_|hopper_|sm\d\d_xmma|xmma_gemm|gemm"
    r"|flashinfer|BatchPrefill|SinglePrefill|xformers|sageattn|flex_attention",
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


def classify(names: Iterable[str], language: str = "") -> str:
    """Return custom, library, mixed or unknown for the kernels of one verified call.

    `language` is the manifest's: what a PyTorch entry launches is torch's own work.
    """
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
