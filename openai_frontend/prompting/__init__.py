"""Messages and texts to token ids. Synchronous: callers run it in the bounded thread pool."""
