"""Records on disk, the ranking of them, and the files that people read."""
