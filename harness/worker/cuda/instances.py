"""The `launch:` section of a .cu: its defaults, the kernel instances that it names, its arithmetic.

The section has been validated (harness/catalog/launch_spec.py); here it is a plain mapping.
"cdiv(S, 64) * B * H" becomes an integer without eval.
"""

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

C_TYPES = {"fp16": "__half", "bf16": "__nv_bfloat16", "fp32": "float"}


def with_defaults(launch: Mapping[str, Any]) -> dict[str, Any]:
    """`launch` with every optional key present; the defaults of harness/catalog/launch_spec.py."""
    optional = {"causal": "both", "dtypes": ["fp16"], "smem_bytes": 0}
    maps = launch.get("tensor_maps", {})
    return {
        "flags": launch.get("flags", []),
        "kernels": [{**optional, **kernel} for kernel in launch["kernels"]],
        "tensor_maps": {name: {"swizzle": "none", **spec} for name, spec in maps.items()},
    }


def instances(launch: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], dict[str, Any]]]:
    """(name expression, kernel entry, {headdim, causal, dtype}) for every case of the manifest."""
    for kernel in with_defaults(launch)["kernels"]:
        masks = {"both": (True, False), "true": (True,), "false": (False,)}[kernel["causal"]]
        for headdim in kernel["headdims"]:
            for causal in masks:
                for dtype in kernel["dtypes"]:
                    case = {"headdim": headdim, "causal": causal, "dtype": dtype}
                    yield fill_name(kernel["name"], **case), kernel, case


def fill_name(name: str, headdim: int, causal: bool, dtype: str) -> str:
    """The template expression with {D}, {causal} and {dtype} replaced."""
    filled = {"D": str(headdim), "causal": str(causal).lower(), "dtype": C_TYPES[dtype]}
    for key, value in filled.items():
        name = name.replace(f"{{{key}}}", value)
    return name


_OPERATORS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {
    "cdiv": lambda a, b: -(-a // b),
    "min": min,
    "max": max,
}


def evaluate(expression: int | str, sizes: Mapping[str, int]) -> int:
    """The integer value of "(64 + 2 * 64) * D * 2" and the like; ValueError on anything else."""
    if isinstance(expression, int):
        return expression
    try:
        return _value(ast.parse(expression, mode="eval").body, sizes)
    except (SyntaxError, KeyError, ZeroDivisionError, TypeError) as error:
        raise ValueError(f"cannot evaluate {expression!r}: {error}") from None


def _value(node: ast.AST, sizes: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return sizes[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, sizes)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, sizes), _value(node.right, sizes))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _FUNCTIONS[node.func.id](*(_value(arg, sizes) for arg in node.args))
    raise ValueError(f"{type(node).__name__} is not arithmetic")
