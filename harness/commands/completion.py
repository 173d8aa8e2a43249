"""`completion bash|zsh`: a static script for the shell; it starts no Python while you type."""

from __future__ import annotations

import argparse
import importlib

from harness.errors import EXIT_OK

SCRIPT = """# {shell} completion of run.py; load it with: eval "$(python run.py completion {shell})"
{head}_attnboard() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} root word=run w
  for w in "${{COMP_WORDS[@]}}"; do case "$w" in */run.py|run.py) root=$(dirname "$w");; esac; done
  [ -n "$root" ] || return 0
  for w in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do case " {commands} " in *" $w "*) word=$w; break;; esac; done
  local prev=${{COMP_WORDS[COMP_CWORD-1]}} words=""
  case "$prev" in
    --submission|-s|show|history|compare|explain|verify)
      words="$(cd "$root/submissions" 2>/dev/null && echo *) $(cd "$root/baselines" 2>/dev/null && echo *) all";;
    --baselines|--against) words="$(cd "$root/baselines" 2>/dev/null && echo *) all none";;
    --suite) words="$(cd "$root/configs" 2>/dev/null && echo *.yaml | sed 's/\\.yaml//g')";;
    --template) words="triton cuda gluon";;
    --causal) words="true false both";;
    --dtype) words="fp16 bf16";;
    completion) words="bash zsh";;
    *) case "$word" in
{cases}
      esac
      case "$prev" in */run.py|run.py) words="{commands} $(cd "$root/submissions" 2>/dev/null && echo *) $words";; esac;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _attnboard run.py ./run.py python python3
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser("completion", help="print a completion script for your shell")
    parser.add_argument("shell", choices=("bash", "zsh"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    print(script(args.shell), end="")
    return EXIT_OK


def script(shell: str) -> str:
    """The script; the flags are read from the parsers themselves, so that none is forgotten."""
    flags = _flags()
    cases = "\n".join(
        f'        {name}) words="{" ".join(words)}";;' for name, words in flags.items()
    )
    head = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return SCRIPT.format(shell=shell, head=head, commands=" ".join(flags), cases=cases)


def _flags() -> dict[str, list[str]]:
    from harness import cli

    parser = argparse.ArgumentParser()
    subparsers = parser.add_subparsers()
    cli.add_run(subparsers)
    for name in cli.command_names():
        if name != "run":
            importlib.import_module(f"harness.commands.{cli.module_of(name)}").add_parser(
                subparsers
            )
    return {
        name: sorted(
            flag
            for action in one._actions
            if action.help != argparse.SUPPRESS
            for flag in action.option_strings
            if flag.startswith("--")
        )
        for name, one in sorted(subparsers.choices.items())
    }
