"""The command line."""

from collections.abc import Sequence

__all__ = ["main"]

INTERRUPTED = 130  # a shell's exit code for SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code.

    Handles Ctrl-C during imports, which take a second; a running server handles signals itself.
    """
    try:
        from openai_frontend.cli import command

        return command.main(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
