"""The command `attnboard`; a wheel also holds harness/, run.py and what they read."""
