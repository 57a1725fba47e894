"""The commands and the Python lines that `serve` prints when it is ready."""

import re
import shlex
import textwrap
from collections.abc import Iterator


def curl_commands(output: str) -> Iterator[str]:
    """Each command as a user pastes it, in one or several lines."""
    command = ""
    for line in output.splitlines():
        if command or line.lstrip().startswith("curl "):
            command += f"{line}\n"
            if not line.endswith("\\") and _is_complete(command):
                yield command.strip()
                command = ""


def _is_complete(command: str) -> bool:
    try:
        shlex.split(command)
    except ValueError:  # a quotation is open
        return False
    return True


def python_code(output: str) -> str:
    """The lines up to the next one that is empty or of the log."""
    found = re.search(r"^ *from openai import OpenAI\n(?:(?!\d{4}-).+\n)+", output, re.M)
    assert found is not None, output
    return textwrap.dedent(found[0])
