"""Leaderboard and results → what people read: markdown, a page, a terminal."""
