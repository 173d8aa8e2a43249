"""Operators in code that `torch.compile` generates: called as functions, without the dispatcher.

What the dispatcher decides at each call, the compiler has decided already; going through it costs
microseconds. Where a version of torch has another inductor, operators are called as operators.
"""

from __future__ import annotations

import sys
from typing import Any

_told: set[Any] = set()


def call_as_function(operator: Any, name: str) -> None:
    """Let inductor call the function `name`, an expression of torch, for `operator`.

    Asked at each tracing. It is called as it was judged: no memory for its output is handed over.

    Without effect before a compiler has loaded inductor, which takes seconds.
    """
    if operator in _told or "torch._inductor.lowering" not in sys.modules:
        return
    _told.add(operator)
    try:
        _lower(operator, name)
    except (ImportError, AttributeError, TypeError):
        return


def _lower(operator: Any, name: str) -> None:
    """Inductor's own way with an operator that it does not know, but for the name."""
    from torch._inductor import ir
    from torch._inductor.lowering import (
        add_needs_realized_inputs,
        fallback_handler,
        register_lowering,
    )
    from torch._inductor.virtualized import V

    as_operator = fallback_handler(operator)

    def lowering(*args: Any) -> Any:
        if V.graph.cpp_wrapper:
            return as_operator(*args)
        results = as_operator(*args)
        first = results[0] if isinstance(results, (list, tuple)) else results
        node = getattr(getattr(first, "data", None), "data", None)
        call = node.inputs[0] if isinstance(node, ir.MultiOutput) else node
        if isinstance(call, ir.FallbackKernel):
            call.python_kernel_name = name
        return results

    add_needs_realized_inputs(operator)
    register_lowering(operator, type_promotion_kind=None)(lowering)
