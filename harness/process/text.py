"""A stranger's words → words that can be printed, sent and stored.

Imports nothing: everything that meets a stranger's text may use it.
"""

from __future__ import annotations

import json
import re

CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]|^::.*$", re.MULTILINE)
SURROGATE = re.compile("[\ud800-\udfff]")


def plain_text(text: str) -> str:
    """Text without escape sequences, control characters or `::workflow-command::` lines."""
    return CONTROL.sub("", text).strip()


def shown(text: object, most: int = 4096) -> str:
    """A path or a word as one line that can be printed, whatever characters it has."""
    line = str(text)
    line = line if len(line) <= most else f"{line[: most - 1]}…"
    return line if line.isprintable() else ascii(line)


def encoded_bytes(text: str) -> int:
    """What `text` takes in a message: JSON in ASCII, six bytes for most of what is not."""
    return len(json.dumps(text)) - 2


def cut(text: str, most_bytes: int) -> str:
    """`text` without half surrogate pairs, as much as takes `most_bytes` in a message.

    Of a longer one head and tail are kept, and '…' between them.
    """
    text = SURROGATE.sub("\ufffd", text)
    if encoded_bytes(text) <= most_bytes:
        return text
    half = (most_bytes - encoded_bytes("…")) // 2
    return f"{_head(text, half)}…{_head(text[::-1], half)[::-1]}"


def _head(text: str, most_bytes: int) -> str:
    """The longest beginning of `text` that takes at most `most_bytes`."""
    text = text[: max(most_bytes, 0)]
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if encoded_bytes(text[:middle]) <= most_bytes:
            low = middle
        else:
            high = middle - 1
    return text[:low]
