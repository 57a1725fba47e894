"""What the demo embedding model is trained on, how, and how it is scored."""
