"""Which prompts share a prefix, and whose caches a prompt may use."""
