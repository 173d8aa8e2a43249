"""`completion bash|zsh`: a static script for the shell; it starts no Python while you type."""

import argparse
import re
import shlex
from pathlib import Path

from harness.errors import Exit
from harness.process.project import HOME, MARK


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What may stand behind the command."""
    parser.add_argument("shell", choices=("bash", "zsh"))


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    print(script(args.shell), end="")
    return Exit.OK


def script(shell: str) -> str:
    """The script; the flags are read from the parsers themselves, so that none is forgotten."""
    flags = _flags()
    cases = "\n".join(f'        {one}) words="{" ".join(words)}";;' for one, words in flags.items())
    head = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    filled = {"shell": shell, "head": head, "mark": MARK, "commands": " ".join(flags)}
    filled |= {"cases": cases, "home": shlex.quote(str(HOME))}
    text = Path(__file__).with_suffix(".sh").read_text(encoding="utf-8")
    return re.sub(r"@(\w+)@", lambda found: filled[found[1]], text)


def _flags() -> dict[str, list[str]]:
    from harness.cli import main

    subparsers = argparse.ArgumentParser().add_subparsers()
    main.add_run(subparsers)
    for name in main.COMMANDS:
        main.add_command(subparsers, name, whole=True)
    return {
        name: ["--root"]
        + sorted(
            flag
            for flag, action in one._option_string_actions.items()
            if flag.startswith("--") and action.help != argparse.SUPPRESS
        )
        for name, one in sorted(subparsers.choices.items())
    }
