"""A ranking as markdown, page, picture and plain text."""
