"""Words and numbers for every report, and the washing of text that a submission wrote.

Nothing here decides anything; it knows the interval and the result, not where they are printed.
"""

from __future__ import annotations

import re
import unicodedata

from harness.board.rank import Board, Row
from harness.measure.stats import Interval
from harness.schema import Result, Status

#: CSI and OSC sequences, then single-character escapes.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P^_X].*?(?:\x07|\x1b\\|$)|\x1b.?|[\x80-\x9f]", re.DOTALL
)
_PLAIN = re.compile(r"[A-Za-z0-9_.,()%=/+-]+(?: [A-Za-z0-9_.,()%=/+-]+)*")
#: `::error file=…::text` and `##[group]` are orders to the runner that reads the log.
_WORKFLOW = re.compile(r"::(?=[a-z][a-z-]*(?:\s[^:\n]*)?::)|##(?=\[)", re.IGNORECASE)


def wash(text: str, limit: int = 400) -> str:
    """One harmless line: no escape sequence, no workflow command, no control or bidi character."""
    if len(text) <= limit and _PLAIN.fullmatch(text):
        return text  # nearly always, and a board of 100,000 lines asks often
    text = _ESCAPES.sub("", text)
    text = "".join(" " if c in "\t\n\r\v\f\u2028\u2029" else c for c in text)
    text = "".join(c for c in text if unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Co"})
    text = re.sub(r" {2,}", " ", text).strip()
    while _WORKFLOW.search(text):  # taking one away may leave another
        text = _WORKFLOW.sub("", text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def times(ratio: Interval | None) -> str:
    """`1.042× [1.039, 1.045]`."""
    if ratio is None:
        return "–"
    return f"{ratio.value:.3f}× [{ratio.low:.3f}, {ratio.high:.3f}]"


def rank_text(row: Row) -> str:
    """`2=` where several share a place; `step` of what is no entry of its own."""
    if row.rank is None:
        return "step" if row.champion and row.speedup else "–"
    return f"{row.rank}{'=' if row.tie else ''}"


def place_text(row: Row) -> str:
    """The same in a sentence: `#2=`, `step`."""
    return f"{'#' if row.rank is not None else ''}{rank_text(row)}"


def number(value: float | None, digits: int) -> str:
    """Fixed digits, or a dash where there is no number."""
    return "–" if value is None else f"{value:.{digits}f}"


def scientific(value: float | None) -> str:
    """`1.2e-03`, or a dash."""
    return "–" if value is None else f"{value:.1e}"


def milliseconds(value: float | None) -> str:
    """Four significant digits: 0.6412, 1.766, 48.48."""
    return "–" if value is None else f"{value:#.4g}"


def board_title(board: Board) -> str:
    """`NVIDIA H200 · fa3`."""
    return f"{wash(board.gpu)} · {wash(board.suite)}"


def conditions(row: Row) -> str:
    """What the row was measured with."""
    machine = row.pick.machine
    parts = [
        f"driver {machine.driver}" if machine.driver else "",
        f"CUDA {machine.cuda}" if machine.cuda else "",
        f"torch {machine.torch}" if machine.torch else "",
        f"triton {machine.triton}" if machine.triton else "",
    ]
    return wash(", ".join(part for part in parts if part))


#: What each ending means and what its author does next.
NEXT = {
    Status.INCORRECT: "the output differs too much; compare with the reference on this shape",
    Status.NONFINITE: "the output holds NaN or infinity; try large logits and masked rows",
    Status.BAD_OUTPUT: "return a tensor of q's shape, dtype and device",
    Status.INPUT_MUTATED: "write into tensors of your own; q, k and v are read-only",
    Status.TIME_CLAIM_REJECTED: "the judge saw more time pass than was told; time nothing yourself",
    Status.LEFT_WORK_RUNNING: "wait for every stream and child process before the call returns",
    Status.COMPILE_ERROR: "read the compiler's words with `python run.py show NAME`",
    Status.IMPORT_ERROR: "import the file by itself: `python -c 'import submission'` in its folder",
    Status.INVALID_SUBMISSION: "mend the folder as the message says",
    Status.INVALID_BASELINE: "the baseline is wrong here; do not compare with it",
    Status.TIMED_OUT: "look for a deadlock or a search that runs too long",
    Status.CRASHED: "run it under compute-sanitizer on this shape",
    Status.OUT_OF_MEMORY: "allocate less, or nothing, in the call",
    Status.OVER_QUOTA: "keep less in the cache and print less",
    Status.UNSUPPORTED: "the manifest does not claim this shape",
    Status.UNAVAILABLE: "install what is named and run again",
    Status.UNSTABLE: "the clocks moved; run again when the machine is quiet",
    Status.CONTENDED: "another process used the GPU; run again when it is free",
    Status.INTERRUPTED: "run again; what was measured is kept",
    Status.BROKE_THE_RUN: "run it by itself; if the harness fails again, report it with the entry",
    Status.HARNESS_ERROR: "our fault, not the submission's; please report it",
}


def ending(result: Result) -> str:
    """`INCORRECT (max diff 0.31)`."""
    reason = wash(result.reason)
    return f"{result.status.value} ({reason})" if reason else result.status.value
