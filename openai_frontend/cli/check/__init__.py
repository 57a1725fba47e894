"""`check`: how models would be served, read from their files."""
