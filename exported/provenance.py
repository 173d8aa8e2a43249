"""What this package was made of: evidence.json, and the judged files beside it."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


@functools.cache
def evidence() -> dict[str, Any]:
    """evidence.json: source hash, claims and rows of `forward` and, if there is one, `backward`."""
    told: dict[str, Any] = json.loads((HERE / "evidence.json").read_text(encoding="utf-8"))
    return told


def part(name: str) -> dict[str, Any] | None:
    """The evidence of `forward` or `backward`; None where the package has none."""
    told: dict[str, Any] | None = evidence()[name]
    return told


def source_hash(name: str) -> str:
    """SHA-256 of the judged files as they lie here, as the board counts it: names, sizes, contents.

    Raises OSError where one is missing.
    """
    told = part(name)
    found = hashlib.sha256()
    for file in told["files"] if told else ():
        body = (HERE / name / file).read_bytes()
        found.update(f"{file}\0{len(body)}\0".encode())
        found.update(body)
    return found.hexdigest()
