"""Many GPUs behind one run: units, three executors that place them, a campaign that records.

unit.py      what is placed: entrants, a suite, and what the node must have
child.py     the process of one unit: the same judge and workers as any run, events on its stdout
executor.py  the interface: submit, poll, cancel
local.py ray.py slurm.py   three executors behind it
campaign.py  retries, records exactly once, tells the view
placement.py  a request → its units, on the executor that its flags name

An executor schedules; it does not isolate. What isolates is inside every unit, the same everywhere.
"""
