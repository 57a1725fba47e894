"""Turns a model's output into content, reasoning and tool calls. No I/O, no HTTP, no API types."""
