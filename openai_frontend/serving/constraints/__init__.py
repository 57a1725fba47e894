"""What an answer is held to: reasoning, then calls, text or a format, in one grammar."""

from openai_frontend.serving.constraints.grammar import NO_CONSTRAINT, Constraint, constraint

__all__ = ["NO_CONSTRAINT", "Constraint", "constraint"]
