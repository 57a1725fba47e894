"""The command line: what the person who starts the gateway types and sees."""

from openai_frontend.cli.command import main

__all__ = ["main"]
