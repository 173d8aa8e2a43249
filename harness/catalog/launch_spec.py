"""The `launch:` section of a manifest: how a plain .cu file is compiled and launched.

The page for people is docs/write-a-cuda-kernel.md. `harness.worker.cuda.instances` reads what
`LaunchSpec.model_dump()` gives; it imports nothing of the harness, so the two meet in a test.
"""

import ast
import re
import warnings
from collections.abc import Callable, Mapping
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness.catalog import compiler_flags
from harness.errors import did_you_mean
from harness.process.text import shown

SIZES = ("B", "H", "S", "D", "SM")  # batch, heads, sequence, head dimension, multiprocessors
FUNCTIONS = ("cdiv", "min", "max")
TENSORS = ("q", "k", "v", "o")
SCALARS = ("B", "H", "S", "D", "SM", "scale", "scale_log2", "causal")
STRIDES = tuple(map(".".join, product(TENSORS, ("strides", "stride_b", "stride_h", "stride_s"))))
PLACEHOLDERS = ("D", "causal", "dtype")
MOST_EXPRESSION = 200  # characters
MOST_NUMBER = 2**31 - 1
MOST_TOLD = 5  # faults of one section
MOST_SHOWN = 600  # characters of one
Text = Annotated[str, Field(min_length=1, max_length=300)]
Location = tuple[int | str, ...]
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.USub)
_STRUCTURE = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Load)


def check_expression(text: str | int) -> str | int:
    """Accepts integer arithmetic (+ - * // %) over B, H, S, D, SM with cdiv, min and max.

    Raises ValueError that names the part it refuses; nothing is evaluated.
    """
    if isinstance(text, bool) or not isinstance(text, (int, str)):
        raise ValueError(f"expected an integer or an expression, got {text!r}")  # noqa: TRY004
    if isinstance(text, int):
        if abs(text) > MOST_NUMBER:
            raise ValueError(f"{text} is more than {MOST_NUMBER}")
        return text
    if len(text) > MOST_EXPRESSION:
        raise ValueError(f"an expression of {len(text)} characters, at most {MOST_EXPRESSION}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is refused anyway
            tree = ast.parse(text, mode="eval")
    except SyntaxError as error:
        raise ValueError(f"{text!r} is not an expression: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError):  # a null character; brackets in brackets
        raise ValueError(f"{text!r} is not an expression") from None
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        _check_node(node, text, is_function=id(node) in called)
    return text


def _check_node(node: ast.AST, text: str, *, is_function: bool) -> None:
    if isinstance(node, _OPERATORS + _STRUCTURE):
        return
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value <= MOST_NUMBER:
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return
    if isinstance(node, ast.Name):
        allowed = FUNCTIONS if is_function else SIZES
        if node.id in allowed:
            return
        raise ValueError(f"{text!r}: unknown name {node.id!r}; use one of {', '.join(allowed)}")
    raise ValueError(
        f"{text!r}: {type(node).__name__} is not allowed; use integers, + - * // %, "
        f"{', '.join(SIZES)}, and {', '.join(FUNCTIONS)}"
    )


Expression = Annotated[int | str, AfterValidator(check_expression)]


def check_flag(flag: str) -> str:
    """Accepts a flag of harness/catalog/compiler_flags.py; raises ValueError that lists them."""
    if said := compiler_flags.refusal(flag):
        raise ValueError(said)
    return flag


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class TensorMap(_Frozen):
    """A TMA descriptor: the tensor seen as (D, S, B * H), read or written in boxes."""

    tensor: Literal["q", "k", "v", "o"]  # whose memory it describes; the tensor must be contiguous
    box: list[Expression] = Field(min_length=2, max_length=2)  # D, then S; each at most 256
    #: Shared-memory swizzle; the box's D extent in bytes must not exceed it.
    swizzle: Literal["none", "32B", "64B", "128B"] = "none"


class Kernel(_Frozen):
    """One kernel and the cases it serves; the first entry that fits a call is launched."""

    name: Text  # name or template expression; {D}, {causal} and {dtype} are filled in per case
    #: Head dimensions it serves.
    headdims: list[Annotated[int, Field(ge=1, le=1024)]] = Field(min_length=1, max_length=32)
    causal: Literal["both", "true", "false"] = "both"  # masks it serves
    #: Element types it serves; {dtype} becomes __half, __nv_bfloat16 or float.
    dtypes: list[Literal["fp16", "bf16", "fp32"]] = Field(default=["fp16"], max_length=3)
    grid: list[Expression] = Field(min_length=1, max_length=3)  # blocks in x, y, z
    block: list[Expression] = Field(min_length=1, max_length=3)  # threads in x, y, z
    smem_bytes: Expression = 0  # dynamic shared memory of a block; above 48 KB the opt-in is made
    #: The kernel's parameters in order, by name, or {i32: expression} / {i64: expression}.
    args: list[Text | dict[Literal["i32", "i64"], Expression]] = Field(min_length=1, max_length=64)

    @model_validator(mode="after")
    def _name_known(self) -> "Kernel":
        if not self.name.isprintable() or "#" in self.name:
            raise ValueError(f"{self.name!r}: a kernel's name is one line without #")
        for used in re.findall(r"{(\w*)}", self.name):
            if used not in PLACEHOLDERS:
                known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
                raise ValueError(f"{self.name!r}: unknown placeholder {{{used}}}; use {known}")
        return self


class LaunchSpec(_Frozen):
    """What NVRTC and the driver must be told about a .cu file."""

    kernels: list[Kernel] = Field(min_length=1, max_length=64)  # tried in order
    #: More NVRTC options, for example --use_fast_math or -DTILE=64.
    flags: list[Annotated[Text, AfterValidator(check_flag)]] = Field(default=[], max_length=32)
    #: TMA descriptors by the name under which args uses them.
    tensor_maps: dict[Text, TensorMap] = Field(default={}, max_length=16)

    @model_validator(mode="after")
    def _arguments_known(self) -> "LaunchSpec":
        known = (*TENSORS, *SCALARS, *STRIDES, *self.tensor_maps)
        for kernel in self.kernels:
            for arg in kernel.args:
                if isinstance(arg, str) and arg not in known:
                    hint = did_you_mean(arg, known) or f"known: {', '.join(known)}"
                    raise ValueError(f"{kernel.name}: unknown argument {arg!r}; {hint}")
                if isinstance(arg, dict) and len(arg) != 1:
                    raise ValueError(f"{kernel.name}: {arg!r} must have one key, i32 or i64")
        return self


def parse_launch(
    section: Mapping[str, Any], where: str, line_of: Callable[[Location], int] | None = None
) -> LaunchSpec:
    """Validates a `launch:` mapping; `where` (a file name) opens the text of the ValueError.

    line_of: the line in which a part of the section is written, if anybody knows.
    """
    try:
        return LaunchSpec.model_validate(dict(section))
    except ValidationError as error:
        lines = []
        for problem in error.errors()[:MOST_TOLD]:
            place = ".".join(str(part) for part in ("launch", *problem["loc"]))
            text = problem["msg"].removeprefix("Value error, ")
            line = f":{line_of(problem['loc'])}" if line_of else ""
            lines.append(shown(f"{where}{line}: {place}: {text}{_near_key(problem)}", MOST_SHOWN))
        more = error.error_count() - MOST_TOLD
        lines += [shown(f"{where}: and {more} more")] if more > 0 else []
        lines.append("The keys are listed in docs/write-a-cuda-kernel.md")
        raise ValueError("\n".join(lines)) from None


def _near_key(problem: Mapping[str, Any]) -> str:
    keys = {*LaunchSpec.model_fields, *Kernel.model_fields, *TensorMap.model_fields}
    odd = problem["type"] == "extra_forbidden"
    return f". {near}" if odd and (near := did_you_mean(str(problem["loc"][-1]), keys)) else ""
