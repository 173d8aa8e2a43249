"""A YAML file → a frozen model; errors name file, line, key and the nearest valid spelling.

The file may come from a stranger, so the loader is stricter than PyYAML's safe one: texts, numbers,
true, false, null, lists and mappings. No tag, no text that UTF-8 cannot carry, no nesting that only
a machine would write, and of aliases no more than the file could have said without (399 bytes of
them can mean 44 MiB). (ruamel.yaml would bring equal keys and line numbers; the loader would have
to be hardened in the same way.)
"""

import functools
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from harness.catalog.source_files import fault, read_file
from harness.errors import UsageError, did_you_mean
from harness.process.text import SURROGATE, shown

MOST_BYTES = 64 << 10
MOST_DEPTH = 24
MOST_NODES = 8192  # the largest suite has 7,200; each costs some 30 µs
MOST_DIGITS = 64  # of a number
MOST_ERRORS = 10  # of one file, in a message
MOST_SORTED = 100  # by their lines, which are searched for in the whole file
SHOWN = 200  # characters of a wrong value in a message

Model = TypeVar("Model", bound=BaseModel)
Location = tuple[int | str, ...]


class StrictLoader(yaml.SafeLoader):
    """What a manifest needs of YAML; no small file becomes a large or a deep value."""

    depth = 0  # of the node at hand
    reached = 0  # the greatest depth of what belongs to it
    written = 0  # characters and nodes so far, those behind aliases counted each time

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.composed: dict[int, tuple[int, int]] = {}  # finished node → what it adds to both
        self.mappings: list[yaml.MappingNode] = []

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """One value of the file; refuses what the head of this file names."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "tag", None):
            raise _refused(f"tag {str(event.tag)[:40]!r} is not taken; leave it out", event)
        text = event.value if isinstance(event, yaml.ScalarEvent) else ""
        if SURROGATE.search(text):
            raise _refused("half a surrogate pair is no text; write the character", event)
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise _refused("nested too deeply; write fewer brackets", event)
        if len(self.composed) > MOST_NODES:
            raise _refused(f"more than {MOST_NODES} values; write fewer", event)
        before, above, self.reached = self.written, self.reached, self.depth
        self.written += 1 + len(text)
        node: yaml.Node | None = super().compose_node(parent, index)
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self.composed:
                raise _refused("an alias inside its own anchor", event)
            size, height = self.composed[id(node)]
            self.written, self.reached = self.written + size, self.depth + height
        else:
            self.composed[id(node)] = (self.written - before, self.reached - self.depth)
            self.mappings += [node] if isinstance(node, yaml.MappingNode) else []
        if self.written > MOST_BYTES or self.reached > MOST_DEPTH:
            raise _refused("aliases make too much of it; write fewer", event)
        self.reached = max(above, self.reached)
        self.depth -= 1
        return node


def _number(loader: StrictLoader, node: yaml.ScalarNode) -> int | float:
    if len(node.value) > MOST_DIGITS:
        said = f"a number of {len(node.value)} characters"
        raise yaml.constructor.ConstructorError(None, None, said, node.start_mark)
    kind = node.tag.rpartition(":")[2]
    number: int | float = getattr(loader, f"construct_yaml_{kind}")(node)
    return number


def _refused(problem: str, event: Any) -> yaml.YAMLError:
    return yaml.composer.ComposerError(None, None, problem, event.start_mark)


for _kind in ("int", "float"):
    StrictLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _number)
#: A date is a text here, and `<<` a key like any other: neither is JSON, which records are made of.
TEXT = "tag:yaml.org,2002:str"
PLAIN = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float"))
StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag in PLAIN]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_model(
    path: Path, model: type[Model], error: type[UsageError], within: Path | None = None
) -> Model:
    """Read `path` and validate it as `model`; raise `error` naming the first wrong line."""
    return model_of(path, read_file(path, MOST_BYTES, error, within), model, error)


def model_of(path: Path, body: bytes, model: type[Model], error: type[UsageError]) -> Model:
    """The same of a file that has been read; `path` is what errors call it."""
    root, data = mapping_of(path, body, error)
    try:
        return model.model_validate(data)
    except ValidationError as cause:
        raise _explain(path, root, model, cause, error) from None


def mapping_of(
    path: Path,
    body: bytes,
    error: type[UsageError],
    expected: str = "'key: value' lines",
    hint: str = "see submissions/triton_template/manifest.yaml, configs/smoke.yaml",
) -> tuple[yaml.Node, dict[str, Any]]:
    """The file's tree, which knows its lines, and its keys and values; no key stands there twice.

    Raises `error`; where the file holds something else it says `expected` and `hint`.
    """
    if len(body) > MOST_BYTES:
        said = f"{len(body)} bytes, at most {MOST_BYTES}"
        raise fault(path, said, "make it shorter", error=error)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as cause:
        line = body.count(b"\n", 0, cause.start) + 1
        said = f"byte 0x{body[cause.start]:02x} is not UTF-8"
        raise fault(path, said, "save the file as UTF-8", line, error) from None
    root, data = _parse(path, text, error)  # type: ignore[arg-type]  # a class has a hash
    if root is None or not isinstance(data, dict):
        raise fault(path, f"expected {expected}", hint, 1, error)
    return root, data


@functools.lru_cache(3)  # rungs read the same ones: described, above, beside
def _parse(path: Path, text: str, error: type[UsageError]) -> tuple[yaml.Node | None, Any]:
    try:
        loader = StrictLoader(text)  # looks for characters that YAML forbids
        root = loader.get_single_node()
        for node in loader.mappings:
            _no_key_twice(path, node, error)
        return root, None if root is None else loader.construct_document(root)
    except (yaml.YAMLError, ValueError, OverflowError) as cause:  # 0x, 1:99:99 and their like
        mark = getattr(cause, "problem_mark", None)
        line, problem = mark.line + 1 if mark else 0, getattr(cause, "problem", None) or str(cause)
        said = f"not YAML: {problem[:SHOWN]}"
        raise fault(path, said, "mend that line and run again", line, error) from None
    except (RecursionError, MemoryError):
        raise fault(path, "nested too deeply", "write fewer brackets", error=error) from None


def _no_key_twice(path: Path, node: yaml.MappingNode, error: type[UsageError]) -> None:
    """YAML's loader would take the last of two equal keys and say nothing."""
    seen: dict[str, int] = {}
    for key, _ in node.value:
        line, name = key.start_mark.line + 1, str(key.value)
        if key.tag != TEXT:
            said = f"key {shown(name, SHOWN)!r} is no text"
            raise fault(path, said, "write a name", line, error)
        if name in seen:
            said = f"'{shown(name, SHOWN)}' is written twice, first in line {seen[name]}"
            raise fault(path, said, "keep one of them", line, error)
        seen[name] = line


def _explain(
    path: Path,
    root: yaml.Node,
    model: type[BaseModel],
    cause: ValidationError,
    error: type[UsageError],
) -> UsageError:
    """All that is wrong, a line each; the hint is the next thing to type for the first."""
    each = cause.errors()
    inner: set[Location] = {e["loc"][:depth] for e in each for depth in range(len(e["loc"]))}
    # a list whose only item is wrong is not too short, too
    first = [e for e in each if e["loc"] not in inner][:MOST_SORTED]
    first.sort(key=lambda e: line_of(root, e["loc"]))
    found = [_error_text(path, root, model, one) for one in first[:MOST_ERRORS]]
    if len(found) == 1:
        return error(*found[0])
    lines = [f"{message} ({hint})" if "edit" not in hint else message for message, hint in found]
    return error("\n".join(lines), f"edit {shown(path)}, these {len(lines)} lines")


def _error_text(
    path: Path, root: yaml.Node, model: type[BaseModel], first: ErrorDetails
) -> tuple[str, str]:
    location: Location = first["loc"]
    line = line_of(root, location)
    where = shown(".".join(str(part) for part in location) or "(the file)", SHOWN)
    if first["type"] == "extra_forbidden":
        known = _fields_at(model, location[:-1])
        hint = did_you_mean(str(location[-1]), known) or f"known keys: {', '.join(sorted(known))}"
        return f"{shown(path)}:{line}: unknown key '{where}'", hint
    got = shown(repr(first.get("input")), SHOWN)
    given = "" if first["type"] == "missing" else f" (got {got})"
    said = "expected a list, as in [a, b]" if first["type"] == "tuple_type" else first["msg"]
    return (
        f"{shown(path)}:{line}: {where}: {shown(said, SHOWN)}{given}",
        f"edit {shown(path)}, line {line}",
    )


def line_of(node: yaml.Node | None, location: Location) -> int:
    """1-based line of the deepest part of `location` that is written in the file."""
    line = 1 if node is None else node.start_mark.line + 1
    for part in location:
        if isinstance(node, yaml.MappingNode):
            if not (pairs := [(key, value) for key, value in node.value if key.value == str(part)]):
                return line
            line, node = pairs[0][0].start_mark.line + 1, pairs[0][1]
        elif isinstance(node, yaml.SequenceNode) and part in range(len(node.value)):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            return line
    return line


def _fields_at(model: type[BaseModel], location: Location) -> list[str]:
    """Names of the keys allowed at `location` inside `model`."""
    for key in (part for part in location if isinstance(part, str)):
        field = model.model_fields.get(key)
        inner = _model_in(field.annotation) if field else None
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, getattr(annotation, "__args__", ()))), None)
