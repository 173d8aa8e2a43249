"""Many GPUs behind one run: units of work, three engines that place them, one campaign that records them.

unit.py      what is placed: entrants, a suite, and what the node must have
child.py     the process of one unit: the same judge and workers as any run, events on its stdout
base.py      the interface: submit, poll, cancel
local.py ray_cluster.py slurm.py   three engines behind it
campaign.py  retries, records exactly once, tells the view
conduct.py   flags → an engine and its units

An engine schedules; it does not isolate. What isolates is inside every unit, the same everywhere.
"""
