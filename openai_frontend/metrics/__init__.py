"""What is counted, and how `/metrics` says it. Knows no HTTP."""
