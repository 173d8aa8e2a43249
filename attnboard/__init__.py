"""The command `attnboard`; a wheel also holds harness/, run.py, configs/, baselines/ and submissions/ here."""
