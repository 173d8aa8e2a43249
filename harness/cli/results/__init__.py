"""Commands about records: `add_flags(parser)`, `run(args) -> exit code`."""
