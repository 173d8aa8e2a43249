"""One run: start the processes, check, time in blocks, give each entrant and case its verdict."""
