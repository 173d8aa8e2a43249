"""What a flag's value may be, and a parser whose errors end in the next thing to type."""

import argparse
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn

from harness.errors import UsageError, did_you_mean

SUSTAINED_S = 2.0  # of --sustained without a number
UNKNOWN = re.compile(r"unrecognized arguments: (--[\w-]+)")


class Parser(argparse.ArgumentParser):
    """Raises UsageError where argparse prints its usage and leaves."""

    def __init__(self, **settings: Any) -> None:
        settings |= {"formatter_class": argparse.RawDescriptionHelpFormatter}  # an epilog's lines
        super().__init__(**settings, allow_abbrev=False)  # sys.argv is searched for some

    def error(self, message: str) -> NoReturn:
        """One line instead of the usage, which is a screen long."""
        stray = UNKNOWN.match(message)
        near = did_you_mean(stray[1], self.options()) if stray else ""
        start = "python " if self.prog.startswith("run.py") else ""
        raise UsageError(message, f"{near} {start}{self.prog} --help".lstrip())

    def options(self) -> list[str]:
        """Every long option that may be meant, those of the commands too."""
        found = [flag for flag in self._option_string_actions if flag.startswith("--")]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    found += parser.options() if isinstance(parser, Parser) else []
        return found


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Type of a flag that counts: a whole number from `least` to `most`."""
    limits = f"from {least}" + ("" if most is None else f" to {most}")

    def parse(text: str) -> int:
        number = int(text) if text.isascii() and text.isdigit() else least - 1
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number {limits}")
        return number

    return parse


def positive(text: str) -> float:
    """Type of a flag that measures: finite and above zero."""
    value = number_in(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number above 0")
    return value


def stretch_s(text: str) -> float:
    """Type of --sustained: seconds, 0 for none."""
    from harness.schema import MOST_SUSTAINED_S  # not before judge and fork server have started

    value = number_in(text)
    if not 0 <= value <= MOST_SUSTAINED_S:
        said = f"'{text}' is not a number of seconds from 0 to {MOST_SUSTAINED_S}"
        raise argparse.ArgumentTypeError(said)
    return value


def number_in(text: str) -> float:
    """NaN where it is none: within no bounds."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def gpu_count(text: str) -> str:
    """Type of --gpus: `all` or a whole number from 1, as text."""
    return text if text == "all" else str(whole(1)(text))
