"""Words and numbers for every report; a text that a submission wrote is made harmless here.

Nothing here decides anything; it knows the interval and the result, not where they are printed.
"""

import re
import shlex
from collections.abc import Mapping
from unicodedata import ucd_3_2_0 as unicode  # the same in every Python: `rank --check` needs it

from harness.board.rank import HELD, Board, Row
from harness.errors import typed
from harness.measure.stats import Interval
from harness.process.text import unordered
from harness.schema import Case, Kind, Result, Status
from harness.schema.mismatch import Mismatch

#: CSI and OSC sequences, then single-character escapes.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P^_X].*?(?:\x07|\x1b\\|$)|\x1b.?|[\x80-\x9f]", re.DOTALL
)
_PLAIN = re.compile(r"[A-Za-z0-9_.,()%=/+-]+(?: [A-Za-z0-9_.,()%=/+-]+)*")
SINCE = "\u00ad\u200b\u17b4\u17b5\u1885\u1886"  # unseen or an accent, since Unicode 3.2
MOST_MARKS, MOST_SHOWN = 3, 400  # accents on one letter; letters of a reason
DOUBT = "?"  # behind a place or a figure whose row was not judged
UNHELD = {
    "unlocked": "unlocked: the driver locked no process, so others' kernels may have run beside it",
    "cooperative": "cooperative: inputs, clock and verdict were its own process's",
}


def sanitize(text: str, limit: int = MOST_SHOWN) -> str:
    """One harmless line: no escape sequence, no order, nothing unseen or newer than Unicode 3.2."""
    if len(text) <= limit and _PLAIN.fullmatch(text):
        return text  # nearly always, and a board of 100,000 lines asks often
    text = _ESCAPES.sub("", text)
    text = "".join(c for c in text if c.isspace() or not _unseen(c))
    text = text if text.isascii() else _unpiled(text)
    text = unordered(" ".join(text.split()))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _unseen(c: str) -> bool:
    return unicode.category(c) in {"Cc", "Cf", "Cs", "Co", "Cn"} or c in SINCE


def _unpiled(text: str) -> str:
    """At most MOST_MARKS accents on one letter: a tower of them lies over other people's rows."""
    kept, marks = [], 0
    for c in text:
        accent = unicode.category(c) in {"Mn", "Me"} or unicode.combining(c)
        marks = marks + 1 if accent else 0
        kept += [c] if marks <= MOST_MARKS else []
    return "".join(kept)


def shape_words(case: Case, between: str = ", ") -> str:
    """`batch 4, 16 heads, seqlen 4096, headdim 64, fp16, causal`.

    `32/8 heads` where heads share k and v, `2048 on 8192` keys, `8192 in 40 sequences to 2048`.
    """
    heads = f"{case.heads}/{case.kv_heads}" if case.kv_heads else f"{case.heads}"
    length = f"{case.seqlen} on {case.seqlen_k}" if case.seqlen_k else f"{case.seqlen}"
    if case.seqlens:
        length += f" in {len(case.seqlens)} sequences to {max(case.seqlens)}"
    words = (f"batch {case.batch}", f"{heads} heads", f"seqlen {length}", f"headdim {case.headdim}")
    return between.join((*words, case.dtype.value, "causal" if case.causal else "full"))


def times(ratio: Interval | None) -> str:
    """`1.042× [1.039, 1.045]`."""
    return "–" if ratio is None else f"{ratio.value:.3f}× [{ratio.low:.3f}, {ratio.high:.3f}]"


def rank_text(row: Row) -> str:
    """`2=` where several share a place, `2?` where it was not judged; `step` of no entry."""
    doubt = "" if all(result.held == HELD[-1] for result in row.results) else DOUBT
    if row.rank is None:
        return f"step{doubt}" if row.champion and row.speedup else "–"
    return f"{row.rank}{'=' if row.tie else ''}{doubt}"


#: Which of the tables a rank is a rank of; nothing: the first.
GROUP_WORDS = {"approximate": " (approx.)", "library": " (library)"}


def place_text(row: Row) -> str:
    """The same in a sentence, with its group: `#2= (approx.)`, `step`."""
    number_of = "#" if row.rank is not None else ""
    return f"{number_of}{rank_text(row)}{GROUP_WORDS.get(row.group, '')}"


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
    return f"{sanitize(board.gpu)} · {board.suite}"


def conditions(result: Result) -> str:
    """What it was measured with; of one row each may be of another run."""
    machine = result.machine
    parts = {"driver": machine.driver, "CUDA": machine.cuda, "torch": machine.torch}
    parts |= {"cuDNN": machine.cudnn, "triton": machine.triton}
    return sanitize(", ".join(f"{name} {version}" for name, version in parts.items() if version))


def printed(log_tail: str, most: int = 12) -> list[str]:
    """The last lines that a submission printed, each harmless and marked: `| call 3`."""
    lines = [sanitize(line, 160) for line in log_tail.splitlines()]
    return [f"| {line}" for line in lines if line][-most:]


#: What each ending means and what its author does next.
NEXT = {
    Status.INCORRECT: "the output differs too much; compare with the reference on this shape",
    Status.NONFINITE: "the output holds NaN or infinity; try large logits and masked rows",
    Status.BAD_OUTPUT: "return a tensor of q's shape, dtype and device",
    Status.INPUT_MUTATED: "write into tensors of your own; inputs are read-only",
    Status.TIME_CLAIM_REJECTED: "the judge saw more time pass than was told; time nothing yourself",
    Status.SLOWER_ALONE: "let no call begin before the last has ended, nor wait for its host",
    Status.LEFT_WORK_RUNNING: "wait for every stream and child process before the call returns",
    Status.COMPILE_ERROR: "mend that line, and run it again",
    Status.IMPORT_ERROR: "mend that line, and run it again",
    Status.INVALID_SUBMISSION: "mend the folder as the message says",
    Status.INVALID_BASELINE: "the baseline is wrong here; do not compare with it",
    Status.TIMED_OUT: (
        "look for a deadlock or a search that runs too long; --timeout sets the limit"
    ),
    Status.CRASHED: "run it under compute-sanitizer on this shape",
    Status.OUT_OF_MEMORY: "allocate less, or nothing, in the call",
    Status.OVER_QUOTA: "keep less in the cache and print less",
    Status.UNSUPPORTED: "what is named is not here: python run.py doctor tells what is",
    Status.UNAVAILABLE: "install what is named and run again",
    Status.UNSTABLE: "the clocks moved; run again when the machine is quiet",
    Status.CONTENDED: "another process used the GPU; run again when it is free",
    Status.INTERRUPTED: "run again; what was measured is kept",
    Status.BROKE_THE_RUN: "run it by itself; if the harness fails again, report it with the entry",
    Status.HARNESS_ERROR: "our fault, not the submission's; please report it",
}

#: Where what is shown of a reason tells more than the status: of each the first pattern that fits.
FITTING = {
    Status.INTERRUPTED: {r"^not measured: ": "mend what failed, and run it again"},
    Status.BAD_OUTPUT: {r"NoneType": "end the function with return and its tensor"},
    Status.CRASHED: {
        r"not compiled with CUDA|No CUDA GPUs|no NVIDIA": "no GPU is here: take q.device",
        r"(?a)\.py:\d+: \w+: ": NEXT[Status.COMPILE_ERROR],
        r"exited with code": "let its calls return: nothing in them may end the process",
    },
    Status.IMPORT_ERROR: {
        r"Found no NVIDIA driver|No CUDA GPUs|not compiled with CUDA": (
            'it needs a GPU: say needs: {compute_capability: "8.0"} in its manifest.yaml'
        ),
        r"FileNotFoundError": "put that file into its folder: a worker sees no other",
        r"No module named": "install that package (needs: names it), or put your file beside it",
    },
    Status.UNSUPPORTED: {
        r"^claims ": (
            "leave the shape out, or widen claims: in its manifest.yaml once the kernel can"
        ),
        r"(?a)^needs |needs an? [\w ]*GPU": "run it on such a GPU",
        r"NotImplementedError": "its own code refuses this shape: implement it, or claim less",
    },
    Status.UNAVAILABLE: {r"^needs a GPU": "run it on such a GPU, or python run.py build NAME"},
}


def side_by_side(kinds: Mapping[str, Kind], suite: str) -> str:
    """The command that measures these entries in the same blocks; a run needs a submission, too."""
    names = {kind: [sanitize(e, 80) for e, k in kinds.items() if k is kind] for kind in Kind}
    usual = "triton_backward" if "bwd" in suite else "triton_template"
    beside = f" --baselines {','.join(names[Kind.BASELINE])}" if names[Kind.BASELINE] else ""
    mine = ",".join(names[Kind.SUBMISSION]) or usual
    beside += "" if suite in {"fa3", "fa3_bwd", "adhoc"} else f" --suite {sanitize(suite, 80)}"
    return typed(f"python run.py --submission {mine}{beside}")


def next_step(result: Result, flags: str = "") -> str:
    """What the author of a failed row does next; `flags`: where a replay finds things."""
    if result.mismatch and result.secret:
        words = (result.run, result.entry, result.config)
        quoted = shlex.join(sanitize(word, 100) for word in words)
        return f"python run.py replay {quoted} --dump x.pt{flags}"
    fitting, reason = FITTING.get(result.status, {}).items(), result.reason[:MOST_SHOWN]
    hint = next((hint for mark, hint in fitting if re.search(mark, reason)), "")
    return (hint or NEXT.get(result.status, "")).replace("NAME", sanitize(result.entry, 80))


def ending(result: Result) -> str:
    """`INCORRECT (max diff 0.31)`."""
    reason = sanitize(result.reason)
    return f"{result.status.value} ({reason})" if reason else result.status.value


MARKS = "·▁▂▃▄▅▆▇██"  # by the share of wrong elements, 0 to 9


def error_map(found: Mismatch) -> list[str]:
    """A line for the scale, then one a head (or several): `h1  ····▃███`."""
    names = head_names(found)
    wide = max(map(len, names))
    lines = [f"{' ' * wide}  {scale(found)}; {MARKS[0]} right, {MARKS[1]} to {MARKS[9]} wrong"]
    for name, levels in zip(names, found.picture, strict=True):
        lines.append(f"{name.rjust(wide)}  {''.join(MARKS[int(level)] for level in levels)}")
    return lines


def scale(found: Mismatch) -> str:
    """`rows of o 0 to 127, 2 a mark`."""
    step = "" if found.rows_a_mark == 1 else f", {found.rows_a_mark} a mark"
    return f"rows of {found.output} 0 to {found.shape[2] - 1}{step}"


def head_names(found: Mismatch) -> list[str]:
    """What each line of the picture is: `h3`, `b1 h2`, `b0 h0…h3`, `b0 h6…b1 h1`."""
    batch, heads = found.shape[:2]
    names = []
    for line in range(len(found.picture)):
        first = line * found.heads_a_line
        last = min(first + found.heads_a_line, batch * heads) - 1
        here, there = _head(first, found), _head(last, found)
        same_batch = first // heads == last // heads
        span = f"{here}…{there.split()[-1] if same_batch else there}"
        names.append(here if last == first else span)
    return names


def _head(number: int, found: Mismatch) -> str:
    batch, head = divmod(number, found.shape[1])
    return f"b{batch} h{head}" if found.shape[0] > 1 else f"h{head}"
