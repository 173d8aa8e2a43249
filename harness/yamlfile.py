"""A YAML file → a frozen model, with errors that name file, line, key and the nearest valid spelling."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from harness.errors import UsageError, did_you_mean

Model = TypeVar("Model", bound=BaseModel)
Location = tuple[int | str, ...]


def load_model(path: Path, model: type[Model], error: type[UsageError]) -> Model:
    """Read `path` and validate it as `model`; raise `error` naming the first wrong line."""
    root, data = read_mapping(path, error)
    try:
        return model.model_validate(data)
    except ValidationError as cause:
        raise _explain(path, root, model, cause, error) from None


def read_mapping(
    path: Path,
    error: type[UsageError],
    expected: str = "'key: value' lines",
    hint: str = "see submissions/triton_template/manifest.yaml, configs/smoke.yaml",
) -> tuple[yaml.Node, dict[str, Any]]:
    """The file's tree, which knows its lines, and its keys and values; no key stands there twice.

    Raises `error`; where the file holds something else it says `expected` and `hint`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as cause:
        line = cause.object.count(b"\n", 0, cause.start) + 1
        raise error(
            f"{path}:{line}: byte 0x{cause.object[cause.start]:02x} is not UTF-8",
            "save the file as UTF-8",
        ) from None
    except OSError as cause:
        raise error(
            f"{path}: cannot be read ({cause.strerror or cause})",
            "check the path and its permissions",
        ) from None
    root, data = _parse(path, text, error)
    if root is None or not isinstance(data, dict):
        raise error(f"{path}:1: expected {expected}", hint)
    _no_key_twice(path, root, error)
    return root, data


def _parse(path: Path, text: str, error: type[UsageError]) -> tuple[yaml.Node | None, Any]:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        return root, yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as cause:  # ValueError: a date such as 2024-13-45
        mark = getattr(cause, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else f"{path}"
        problem = getattr(cause, "problem", None) or str(cause)
        raise error(f"{where}: not YAML: {problem}", "mend that line and run again") from None
    except RecursionError:
        raise error(f"{path}: nested too deeply", "write fewer brackets") from None


def _no_key_twice(path: Path, root: yaml.Node, error: type[UsageError]) -> None:
    """YAML's loader would take the last of two equal keys and say nothing."""
    left = [root]
    known = {id(root)}  # an alias leads to a node seen before, perhaps to its own parent
    while left:
        node, children = left.pop(), []
        if isinstance(node, yaml.MappingNode):
            _differing_keys(path, node, error)
            children = [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        left += [child for child in children if id(child) not in known]
        known.update(map(id, children))


def _differing_keys(path: Path, node: yaml.MappingNode, error: type[UsageError]) -> None:
    seen: dict[str, int] = {}
    for key, _ in node.value:
        line, name = key.start_mark.line + 1, str(key.value)
        if name in seen:
            raise error(
                f"{path}:{line}: '{name}' is written twice, first in line {seen[name]}",
                "keep one of them",
            )
        seen[name] = line


def _explain(
    path: Path,
    root: yaml.Node,
    model: type[BaseModel],
    cause: ValidationError,
    error: type[UsageError],
) -> UsageError:
    first = cause.errors()[0]
    location: Location = first["loc"]
    line = line_of(root, location)
    where = ".".join(str(part) for part in location) or "(the file)"
    if first["type"] == "extra_forbidden":
        known = _fields_at(model, location[:-1])
        guess = did_you_mean(str(location[-1]), known)
        hint = guess or f"known keys: {', '.join(sorted(known))}"
        return error(f"{path}:{line}: unknown key '{where}'", hint)
    shown = "" if first["type"] == "missing" else f" (got {first.get('input')!r})"
    said = "expected a list, as in [a, b]" if first["type"] == "tuple_type" else first["msg"]
    return error(f"{path}:{line}: {where}: {said}{shown}", f"edit {path}, line {line}")


def line_of(node: yaml.Node | None, location: Location) -> int:
    """1-based line of the deepest part of `location` that is written in the file."""
    line = 1 if node is None else node.start_mark.line + 1
    for part in location:
        if isinstance(node, yaml.MappingNode):
            pairs = [(key, value) for key, value in node.value if key.value == str(part)]
            if not pairs:
                return line
            line, node = pairs[0][0].start_mark.line + 1, pairs[0][1]
        elif (
            isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value)
        ):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            return line
    return line


def _fields_at(model: type[BaseModel], location: Location) -> list[str]:
    """Names of the keys allowed at `location` inside `model`."""
    current: type[BaseModel] = model
    for part in location:
        if isinstance(part, int):
            continue
        field = current.model_fields.get(str(part))
        inner = _model_in(field.annotation) if field else None
        if inner is None:
            return []
        current = inner
    return list(current.model_fields)


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        found = _model_in(inner)
        if found:
            return found
    return None
