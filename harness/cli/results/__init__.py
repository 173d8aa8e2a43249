"""Commands about records: `add_parser(subparsers)`, `run(args) -> exit code`."""
