#!/usr/bin/env python3
"""python run.py --submission NAME: check it, time it, rank it, rewrite leaderboard.md."""

from __future__ import annotations

import argparse
import sys

from harness.cli.output import keep_places
from harness.errors import EXIT_UNAVAILABLE
from harness.process import prestart

if __name__ == "__main__":  # torch is imported elsewhere while we import
    keep_places()
    prestart.begin(sys.argv[1:])

try:
    from harness.board.store import Checked, Store
    from harness.cli.dispatch import dispatch
    from harness.cli.main import exit_code_of, parse_args, report, run_command
    from harness.cli.run_options import (
        choose_suite,
        machine_of,
        placement_of,
        resolve_request,
        slow_here,
    )
    from harness.cli.watch import Watch
except ModuleNotFoundError as missing:
    print(f"error: {missing.name} is not installed\n  next: pip install -e .", file=sys.stderr)
    sys.exit(EXIT_UNAVAILABLE)


def main(args: argparse.Namespace | None = None) -> int:
    """The story: what is asked, where, by whom; judge and time; keep; rank."""
    args = args or parse_args()
    if args.command != "run":
        return run_command(args)
    if args.watch:
        return Watch(args).repeat(main)  # this story again after every edit
    machine = machine_of(args)
    suite = choose_suite(args, machine)
    request = resolve_request(args, suite, machine)
    placement = placement_of(args)
    with report(args, placement) as view:
        for warning in slow_here(request):
            view.note(warning)
        for error in request.refused:
            view.note(f"left out: {error}")
        store = Checked(request) if args.check else Store(args.results, keep=args.json)
        try:
            dispatch(request, placement, args.results, store.save, view)
        finally:
            store.rank_into(args.leaderboard, view)
            store.tell(args.json)
    return store.exit_code_beside(request.refused)


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
