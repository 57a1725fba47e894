"""Which model a caller may use, and when a request may run."""
