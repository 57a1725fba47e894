"""The command line: what the person who starts the gateway types and sees."""

from collections.abc import Sequence

__all__ = ["main"]

INTERRUPTED = 130  # a shell's code for it


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code. What it imports takes a second, and Ctrl-C may come
    by then; a server that runs has its own way to end.
    """
    try:
        from openai_frontend.cli import command

        return command.main(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
