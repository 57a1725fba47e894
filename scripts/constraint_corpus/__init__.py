"""A corpus of patterns and JSON schemas whose constrained answers are validated."""
