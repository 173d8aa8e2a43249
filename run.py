#!/usr/bin/env python3
"""python run.py --submission NAME: check it, time it, rank it, rewrite leaderboard.md."""

if __name__ == "__main__":
    from attnboard import leave_here

    leave_here()

import argparse
import sys

from harness.process import bytecode

if __name__ == "__main__":
    bytecode.use_cache()  # before there is more to compile

from harness.cli.main import command_module, exit_code_of, is_campaign, parse_args
from harness.process import prestart


def main(args: argparse.Namespace | None = None) -> int:
    """The story: what is asked, where, by whom; judge and time; keep; rank."""
    args = args or parse_args()
    if args.command != "run":
        code: int = command_module(args.command).run(args)
        return code
    if not is_campaign(args):
        prestart.start_next()  # the judge imports torch while we import

    from harness.board.store import Checked, Store
    from harness.cli.dispatch import dispatch, open_view
    from harness.cli.run_options import (
        choose_suite,
        machine_of,
        placement_of,
        resolve_request,
        slow_here,
    )
    from harness.cli.watch import Watch

    if args.watch:
        return Watch(args).repeat(main)  # this story again after every edit
    machine = machine_of(args)
    suite = choose_suite(args, machine)
    request = resolve_request(args, suite, machine)
    placement = placement_of(args)
    with open_view(placement, json=args.json, brief=args.quiet) as view:
        for warning in slow_here(request):
            view.note(warning)
        for why in request.refused:
            view.note(f"left out: {why}")
        store = Checked(request) if args.check else Store(args.results, keep=args.json)
        try:
            dispatch(request, placement, store.results_dir, store.save, view)
        finally:
            store.rank_into(args.leaderboard, view)
            if args.json:
                store.print_json(request.refused)
    return store.exit_code(request.refused)


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
