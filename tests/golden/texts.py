"""What people and scripts read of this project, as it is today: help, a record, a board, a page.

    python -m tests.golden.texts     write the files beside this one again, then read `git diff`

A change in one of these files is a change that somebody will meet: mean it, and say it in the commit.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import run
from harness.board import record
from harness.board.rank import leaderboard
from harness.board.render import markdown, page, picture
from harness.cli import main as cli_main
from harness.schema import Energy, Kind, Result, Sample, Speedup, Status, Sustained, Telemetry
from tests.board.factory import BASE_MS, CASES, record_files, result, stretch, timed

HERE = Path(__file__).parent
BLOCKS = 8
#: Entry → its time as a multiple of the baseline's, and by how much it moves from block to block.
ENTRIES = {
    "sdpa_cudnn": (1.0, 0.0),
    "fast": (0.8, 0.001),
    "fast_too": (0.8001, 0.002),
    "slow": (1.5, 0.001),
}
ASKED = (
    "list suites",
    "show fast --samples",
    "show broken --json",
    "compare fast slow",
    "compare fast fast_too",
    "compare fast slow --json",
    "compare slow fast --fail-on-regression 1%",
    "history fast",
    "explain fast slow --cache RESULTS/builds",
)


def helps() -> dict[str, str]:
    """`--help` of every command, without what Python's versions lay out differently."""
    words = [["--help"], *([name, "--help"] for name in ("run", *cli_main.COMMANDS))]
    pages = (f"$ {' '.join(asked)}\n\n{_help(asked)}" for asked in words)
    return {"help.txt": "\n\n".join(pages)}


def _help(words: list[str]) -> str:
    out = io.StringIO()
    wide = mock.patch.dict(os.environ, {"COLUMNS": "4000"})
    with wide, contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        cli_main.parse_args(words)
    # Python 3.13 names the value once: `--submission, -s NAME`
    text = re.sub(r"(-[\w-]+) ([A-Z]+), (-[\w-]+ \2)", r"\1, \3", out.getvalue())
    return re.sub(r"(?m)(\S) {2,}(?=\S)", r"\1  ", re.sub(r"\n {20,}", "  ", text))


def one_record() -> Result:
    """A row in which every field holds something, with figures that no library computes."""
    samples = [
        Sample(block=number, calls_ms=(0.5, 0.25, 0.375, 0.5), t2_ms=2.125, sm_mhz=1755, energy_j=0.75)
        for number in range(3)
    ]  # fmt: skip
    return result(
        "mine",
        speedup=Speedup(against="sdpa_cudnn", value=1.25, low=1.125, high=1.375),
        energy=Energy(joules_per_call=0.5, low_j=0.375, high_j=0.625),
        sustained=stretch(0.75),
        samples=(*samples, samples[0].model_copy(update={"block": 3, "late": True})),
        telemetry=tuple(
            Telemetry(sm_mhz=1755, mem_mhz=3201, power_w=640.0, temperature_c=55) for _ in range(3)
        ),
        kernels=("mine_kernel",),
        date="2026-11-21T12:00:00+00:00",
        blocks=3,
    )


def results() -> list[Result]:
    """One run of four entries, one of which crashed on one shape."""
    made = []
    for config in CASES:
        base = _times(BASE_MS[config], 0.0)
        for entry, (factor, step) in ENTRIES.items():
            kind = Kind.BASELINE if entry.startswith("sdpa") else Kind.SUBMISSION
            told = _times(BASE_MS[config] * factor, step)
            made.append(
                timed(entry, config, kind, told, base, run="r1", sustained=_lasting(entry, config))
            )
        ended = Status.CRASHED if config == "hdim256_seq16k" else Status.INCORRECT
        made.append(result("broken", config, status=ended, reason="exited with code 1"))
    return made


def _lasting(entry: str, config: str) -> Sustained | None:
    """Of one config: the two that tie in bursts differ in energy, and one stretch failed."""
    if config != "hdim64_seq4k" or entry == "sdpa_cudnn":
        return None
    if entry == "slow":
        return Sustained(status=Status.OUT_OF_MEMORY, reason="CUDA out of memory")
    return stretch(0.625, 600.0 if entry == "fast" else 690.0)


def _times(ms: float, step: float) -> dict[int, float]:
    """Block → latency in ms, up and down by `step` of it."""
    return {block: ms * (1 + step * (block * 7 % 5 - 2)) for block in range(BLOCKS)}


def boards() -> dict[str, str]:
    """The board of `results()` in each of its forms."""
    board = leaderboard(results())
    files = page.Files(records=record_files(results()))
    document = page.document(board, [], {"fast": "Notes of fast."}, files)
    return {
        "record.jsonl": record.to_line(one_record()) + "\n",
        "board.md": markdown.render(board, {0: "docs/board.svg"}),
        "board.svg": picture.pictures(board)[0][1],
        "page.json": json.dumps(_short(document), indent=1) + "\n",
    }


def commands() -> dict[str, str]:
    """What the commands that read records print of `results()`."""
    with tempfile.TemporaryDirectory() as folder:
        for one in results():
            record.append(Path(folder), one)
        told = [f"$ {line}\n\n{_printed(line, folder)}" for line in ASKED]
    return {"commands.txt": "\n\n".join(told).replace(folder, "RESULTS")}


def _printed(line: str, results_dir: str) -> str:
    words = [*line.replace("RESULTS", results_dir).split(), "--results", results_dir]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = run.main(cli_main.parse_args(words))
    text = out.getvalue()
    if "--json" in words:
        text = json.dumps(_short(json.loads(text)), indent=1)
    return f"{text.rstrip()}\nexit code {code}\n"


def _short(value: Any) -> Any:
    """The same with six digits a number: the last ones are the library's of the day."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _short(item) for key, item in value.items()}
    return [_short(item) for item in value] if isinstance(value, list | tuple) else value


MAKERS: tuple[Callable[[], dict[str, str]], ...] = (helps, boards, commands)


def main() -> None:
    """Write every file."""
    for make in MAKERS:
        for name, text in make().items():
            (HERE / name).write_text(text, encoding="utf-8")
            print(HERE / name)


if __name__ == "__main__":
    main()
