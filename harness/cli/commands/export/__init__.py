"""From the board to use: a judged entry as a Python package of its own."""
