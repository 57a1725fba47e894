"""The demo speech model: its spoken digits, its weights and its training."""
