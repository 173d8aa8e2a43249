"""configs/*.yaml → Suite; and the command line's own shapes → an ad-hoc Suite."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from harness.catalog.source_files import fault
from harness.catalog.yaml_model import load_model
from harness.errors import SuiteError, UsageError, did_you_mean
from harness.problems import get_problem
from harness.problems.shapes import hidden_case, number_of
from harness.process.project import base, layers
from harness.schema import Case, Dtype, Result, Suite
from harness.schema.suite import MOST_CASES

TOTAL_TOKENS = 16384  # FlashAttention-3 paper, section 4.1: batch · seqlen
HIDDEN = 2048  # heads · headdim there

MASKS = {"true": (True,), "false": (False,), "both": (True, False)}
DTYPES = dict.fromkeys(("fp16", "float16", "half"), (Dtype.FP16,))
DTYPES |= dict.fromkeys(("bf16", "bfloat16"), (Dtype.BF16,))
MOST_DRAWN = 16  # hidden shapes a headdim
Some = TypeVar("Some", bool, Dtype)


def load_suite(name: str, configs: Path) -> Suite:
    """Load `name` (a file of `configs`, with or without .yaml, or any path to one)."""
    path = Path(name)
    if path.suffix not in {".yaml", ".yml"}:
        path = _named(f"{name}.yaml", configs)
    elif not os.path.exists(path):
        path = _named(path.name, configs)
    if not os.path.isfile(path):  # a Path's own raises of a name that is too long
        known = sorted(known_suites(configs))
        hint = did_you_mean(Path(name).stem, known) or f"suites here: {', '.join(known)}"
        raise SuiteError(f"no suite '{name}' ({path} is no file)", hint)
    suite = load_model(path, Suite, SuiteError)
    if path.parent == configs and suite.name != path.stem:
        said = f"name is '{suite.name}' in the file of '{path.stem}'"
        raise fault(path, said, f"write name: {path.stem}", error=SuiteError)
    if taken := next((case.name for case in suite.cases if case.hidden), ""):
        said = f"case '{taken}': names of hidden shapes begin so"
        raise fault(path, said, f"choose another name in {path}", error=SuiteError)
    try:
        get_problem(suite.problem)
    except UsageError as cause:
        raise fault(path, cause.message, cause.hint, error=SuiteError) from None
    return suite


def known_suites(configs: Path) -> dict[str, Path]:
    """Name → file, of `configs` and of what comes along."""
    files = (file for layer in layers(configs)[::-1] for file in sorted(layer.glob("*.yaml")))
    return {file.stem: file for file in files}


@cache
def by_sha256() -> dict[str, Suite]:
    """Hash → suite, of `configs` and of what comes along."""
    found: list[Suite] = []
    for file in (file for layer in layers(base() / "configs") for file in layer.glob("*.yaml")):
        with contextlib.suppress(SuiteError):  # what is none is told who asks for it
            found.append(load_model(file, Suite, SuiteError))
    return {suite.sha256: suite for suite in found}


def is_asked(row: Result) -> bool:
    """Whether its suite is known by its hash, and its secret; ValueError: it asks no such case."""
    suite = by_sha256().get(row.suite_sha256)
    if suite is None or (row.case.hidden and not row.secret):
        return False
    cases = _drawn(suite, row) if row.case.hidden else suite.cases
    told, *asked = ((c.name, c.question, c.hidden or c.burst) for c in (row.case, *cases))
    if told not in asked or (row.suite, row.problem) != (suite.name, suite.problem):
        raise ValueError(f"{row.config} of {row.suite}: no case of {suite.name}, whose hash it has")
    return True


def _drawn(suite: Suite, row: Result) -> Iterator[Case]:
    """The shape that its secret gives under its name, if such a name is given at all."""
    nth, headdim = row.config.rpartition("_")[2], row.case.headdim
    n, number = int(nth) if nth.isdecimal() else 1, partial(number_of, bytes.fromhex(row.secret))
    if 1 <= n <= MOST_DRAWN and any(case.headdim == headdim for case in suite.cases):
        yield hidden_case(suite.cases, headdim, n, number, get_problem(suite.problem))


def _named(file: str, configs: Path) -> Path:
    """Where `file` of `configs` lies; in `configs` if nowhere."""
    places = (layer / file for layer in layers(configs))
    return next(filter(os.path.isfile, places), configs / file)


def adhoc_suite(base: Suite, **asked: Sequence[str] | None) -> Suite:
    """Replace the cases of `base` by those of --headdim/--seqlen/--causal/--dtype/--batch/--heads.

    Shapes follow the FlashAttention-3 convention: 16,384 tokens in all, heads · headdim = 2048,
    unless batch or heads are given.
    """
    if not any(asked.values()):
        return base
    headdims = [_whole("--headdim", text) for text in asked.get("headdim") or ["64", "128", "256"]]
    seqlens = [parse_length(text) for text in asked.get("seqlen") or ["4k"]]
    causals = _meant("--causal", asked.get("causal") or ["true"], MASKS)
    dtypes = _meant("--dtype", asked.get("dtype") or ["fp16"], DTYPES)
    batch, heads = _only("--batch", asked.get("batch")), _only("--heads", asked.get("heads"))
    shapes = product(dict.fromkeys(headdims), dict.fromkeys(seqlens), causals, dtypes)
    cases = [_case(d, s, causal, dtype, batch, heads) for d, s, causal, dtype in shapes]
    if len(cases) > MOST_CASES:
        raise UsageError(f"{len(cases)} shapes; at most {MOST_CASES}", "ask for fewer at a time")
    return base.model_copy(update={"name": "adhoc", "cases": tuple(cases), "hidden": 0})


def parse_length(text: str) -> int:
    """'512', '8k' → tokens (k = 1024)."""
    found = re.fullmatch(r"([0-9]+)([kK]?)", text.strip())
    tokens = int(found[1]) * (1024 if found[2] else 1) if found else 0
    if not tokens:
        raise UsageError(f"--seqlen {text}: not a length", "write 512, 4096 or 8k")
    return tokens


def _case(
    headdim: int, seqlen: int, causal: bool, dtype: Dtype, batch: int | None, heads: int | None
) -> Case:
    short = f"{seqlen // 1024}k" if seqlen % 1024 == 0 else str(seqlen)
    name = f"hdim{headdim}_seq{short}{'' if causal else '_full'}"
    name += "" if dtype is Dtype.FP16 else f"_{dtype.value}"
    try:
        return Case(
            name=name,
            batch=max(1, TOTAL_TOKENS // seqlen) if batch is None else batch,
            heads=max(1, HIDDEN // headdim) if heads is None else heads,
            seqlen=seqlen,
            headdim=headdim,
            causal=causal,
            dtype=dtype,
        )
    except ValidationError as cause:
        first = cause.errors()[0]
        said = f"--{first['loc'][0]} {first['input']}: {first['msg']}"
        raise UsageError(said, "python run.py run --help") from None


def _whole(flag: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise UsageError(f"{flag} {text}: not a whole number from 1", f"write {flag} 64")
    return int(text)


def _only(flag: str, texts: Sequence[str] | None) -> int | None:
    """The one number that `flag` takes; None where it is not given."""
    if texts and len(texts) > 1:
        said = f"{flag} {','.join(texts)}: one number for all shapes"
        raise UsageError(said, f"{flag} {texts[0]}")
    return _whole(flag, texts[0]) if texts else None


def _meant(flag: str, words: Sequence[str], known: Mapping[str, Sequence[Some]]) -> list[Some]:
    """What `words` mean, each once."""
    for word in words:
        if word.lower() not in known:
            raise UsageError(f"{flag} {word}: unknown", f"write one of {', '.join(known)}")
    return list(dict.fromkeys(each for word in words for each in known[word.lower()]))
