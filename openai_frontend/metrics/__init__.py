"""Metrics and their text for `/metrics`."""
