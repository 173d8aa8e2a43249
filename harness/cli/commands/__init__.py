"""Commands on submissions and the machine: `add_parser(subparsers)`, `run(args) -> exit code`."""
