"""Training and score of the demo classifier."""
