"""The models: their names, which of them serve, and what changes that."""
