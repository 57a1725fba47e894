"""Processes that decode and encode media. Knows neither requests, models nor engines."""
