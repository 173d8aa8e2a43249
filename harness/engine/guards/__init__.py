"""What watches a run: quiet GPU, budgets of entrants, memory of their processes."""
