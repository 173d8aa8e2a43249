"""Figures from samples: statistics, two clocks, drift, the plan of blocks, what a GPU could do."""
