"""A YAML file → a frozen model, with errors that name file, line, key and the nearest valid spelling."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from harness.errors import UsageError, did_you_mean

Model = TypeVar("Model", bound=BaseModel)
Location = tuple[int | str, ...]


def load_model(path: Path, model: type[Model], error: type[UsageError]) -> Model:
    """Read `path` and validate it as `model`; raise `error` naming the first wrong line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise error(
            f"{path}: cannot be read ({cause})", "check the path and its permissions"
        ) from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as cause:
        mark = getattr(cause, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(cause, "problem", None) or str(cause)
        raise error(f"{path}:{line}: not YAML: {problem}", "mend that line and run again") from None
    if not isinstance(data, dict):
        raise error(f"{path}:1: expected 'key: value' lines", "see docs/ for an example")
    try:
        return model.model_validate(data)
    except ValidationError as cause:
        raise _explain(path, root, model, cause, error) from None


def _explain(
    path: Path,
    root: yaml.Node | None,
    model: type[BaseModel],
    cause: ValidationError,
    error: type[UsageError],
) -> UsageError:
    first = cause.errors()[0]
    location: Location = first["loc"]
    line = _line_of(root, location)
    where = ".".join(str(part) for part in location) or "(the file)"
    if first["type"] == "extra_forbidden":
        known = _fields_at(model, location[:-1])
        guess = did_you_mean(str(location[-1]), known)
        hint = guess or f"known keys: {', '.join(sorted(known))}"
        return error(f"{path}:{line}: unknown key '{where}'", hint)
    shown = "" if first["type"] == "missing" else f" (got {first.get('input')!r})"
    return error(f"{path}:{line}: {where}: {first['msg']}{shown}", f"edit {path}, line {line}")


def _line_of(node: yaml.Node | None, location: Location) -> int:
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
