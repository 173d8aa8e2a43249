"""Operators in code that `torch.compile` generates: called as functions, without the dispatcher.

What the dispatcher decides at each call, the compiler has decided already; going through it costs
microseconds. Where a version of torch has another inductor, operators are called as operators.
"""

from __future__ import annotations

import sys
from typing import Any

_told: set[Any] = set()


def call_as_function(operator: Any, name: str, into: str | None) -> None:
    """Let inductor call the function `name` for `operator`; asked at each tracing.

    `into`, if there is one, is called instead: it takes memory for its output as `out`, which
    compiled code plans and uses again. Names are expressions of torch.

    Without effect before a compiler has loaded inductor, which takes seconds.
    """
    if operator in _told or "torch._inductor.lowering" not in sys.modules:
        return
    _told.add(operator)
    try:
        _lower(operator, name, into)
    except (ImportError, AttributeError, TypeError):
        return


def _lower(operator: Any, name: str, into: str | None) -> None:
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
        if into:
            return ir.TensorBox.create(with_memory(args, into))
        results = as_operator(*args)
        first = results[0] if isinstance(results, (list, tuple)) else results
        node = getattr(getattr(first, "data", None), "data", None)
        call = node.inputs[0] if isinstance(node, ir.MultiOutput) else node
        if isinstance(call, ir.FallbackKernel):
            call.python_kernel_name = name
        return results

    def with_memory(args: tuple[Any, ...], into: str) -> Any:
        layout = ir.FallbackKernel.tensor_to_layout(V.graph.current_node.meta["val"])
        tensors = [ir.ExternKernel.realize_input(each) for each in args if _is_tensor(each)]
        numbers = [each for each in args if not _is_tensor(each)]
        return ir.ExternKernelOut(layout, tensors, numbers, python_kernel_name=into)

    def _is_tensor(arg: Any) -> bool:
        return isinstance(arg, ir.IRNode)

    add_needs_realized_inputs(operator)
    register_lowering(operator, type_promotion_kind=None)(lowering)
