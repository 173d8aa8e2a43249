"""The corpus of attacks and honest controls, run against the harness."""
