"""Developers' commands, run from the repository's root with `python -m`; nothing here ships."""
