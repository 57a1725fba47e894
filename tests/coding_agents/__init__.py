"""Coding agents as clients: how each is configured and run, and what it sends."""
