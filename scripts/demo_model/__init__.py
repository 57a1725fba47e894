"""Makes the demo model: its text, its tokenizer, its weights, its score. Downloads nothing."""
