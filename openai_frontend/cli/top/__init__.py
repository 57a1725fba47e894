"""`top`: a live view of a running gateway, model by model."""
