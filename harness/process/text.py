"""A stranger's words → words that can be printed, sent and stored.

Imports nothing: everything that meets a stranger's text may use it.
"""

import json
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

ESCAPE = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]")
#: C0, C1, bidi and other unseen characters, private ones, separators of lines that are no "\n".
UNSEEN = frozenset({"Cc", "Cf", "Co", "Zl", "Zp"})
#: The first sign of what a CI runner takes for an order to itself: `##[`, `##vso[` (Azure's) or
#: `##teamcity[` anywhere, and `::` that begins a line, blanks before it or not.
MARK = r"#(?=#[A-Za-z0-9_]*\[)"
ORDER = re.compile(rf"(?:^|(?<=\r))[^\S\r\n]*:(?=:)|{MARK}", re.MULTILINE)
MOST_KEYS = 1000  # of one object of JSON
SURROGATE = re.compile("[\ud800-\udfff]")


def plain_text(text: str) -> str:
    """Lines without escape sequences or unseen characters, in which no CI runner reads an order."""
    text = ESCAPE.sub("", text)
    if not (text.isascii() and text.isprintable()):
        text = "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in UNSEEN)
    return unordered(text).strip()


def unordered(text: str) -> str:
    """`text` with a blank in each order: it is none, and nothing taken away leaves another."""
    return ORDER.sub(r"\g<0> ", text) if "##" in text or "::" in text else text


def shown(text: object, most: int = 4096) -> str:
    """A path or a word as one line that can be printed, whatever characters it has."""
    line = str(text)
    line = line if len(line) <= most else f"{line[: most - 1]}…"
    return line if line.isprintable() else ascii(line)


def printed_as_it_is(path: object) -> bool:
    """Whether a printed command names this very path: no sign of it is dropped or altered."""
    text = str(path)
    same = text.isprintable() and text == " ".join(plain_text(text).split())
    return same and "run.py" not in re.split(r"[^\w./-]", text)  # errors.typed makes it `attnboard`


def dumps(document: object, **how: Any) -> str:
    """JSON of this form, in whose texts no CI runner reads an order: they are what they were."""
    return re.sub(MARK, r"\\u0023", json.dumps(document, **how))


def run_document(kind: str, rows: Sequence[object], refused: Iterable[str]) -> str:
    """The one of a run: `rows`, under their kind, and what errors of these words say."""
    parted = (words.partition("\n  next: ") for words in refused)
    told = [{"reason": reason, "next": hint} for reason, _, hint in parted]
    return dumps({kind: rows, "refused": told})


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two equal keys a board that reads the front alone takes the one, and JSON the other."""
    fields = dict(pairs) if len(pairs) <= MOST_KEYS else {}  # of each pydantic would keep an error
    if len(fields) < len(pairs):
        raise ValueError(f"a key is written twice, or more than {MOST_KEYS}")
    return fields


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
    ends = range(1, min(len(text), max(most_bytes, 0)) + 1)
    return text[: bisect_right(ends, most_bytes, key=lambda end: encoded_bytes(text[:end]))]
