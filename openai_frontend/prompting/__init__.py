"""Messages and texts become token ids. Synchronous: callers run it in the bounded pool."""
