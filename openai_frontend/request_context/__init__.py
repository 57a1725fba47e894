"""The state of a request: who sends it, what it uses, and what is recorded of it."""
