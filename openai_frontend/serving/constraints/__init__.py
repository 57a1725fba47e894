"""Constraints on output: reasoning, then calls, text or a response format, as one grammar."""
