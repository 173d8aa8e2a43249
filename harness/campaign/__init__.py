"""Many GPUs behind one run: `placement.py` is where to begin.

An executor schedules; it does not isolate. What isolates is inside every unit, the same everywhere.
"""
