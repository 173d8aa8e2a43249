"""Processes of others: start, watch and end them, speak with them, share memory with them."""
