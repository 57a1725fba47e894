"""Makes the demo model: its training text, its tokenizer, its weights and its score. Downloads nothing."""
