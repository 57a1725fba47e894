"""Constraints of an answer: schemas, patterns and grammars, compiled in a sandbox."""
