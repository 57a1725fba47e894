"""What `serve` tells the person who started it. Only makes text and writes it."""

import json
import shlex
import time
from collections.abc import Sequence
from ipaddress import ip_address
from typing import TextIO

_LINE_EVERY_S = 5.0
_SPINNER = "|/-\\"
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104  only compared

QUESTION = [{"role": "user", "content": "What is Triton?"}]


class LoadProgress:
    """Says what loads and for how long: a spinner on a terminal, else a line every few seconds."""

    def __init__(self, out: TextIO, models: Sequence[str]) -> None:
        self._out = out
        self._what = ", ".join(models) or "the server"
        self._started = time.monotonic()
        self._next_line_s = _LINE_EVERY_S
        self._turns = 0

    def tick(self) -> None:
        """Called several times a second while models load."""
        elapsed_s = time.monotonic() - self._started
        if self._out.isatty():
            self._turns += 1
            sign = _SPINNER[self._turns % len(_SPINNER)]
            self._out.write(f"\r{sign} loading {self._what}: {elapsed_s:.0f} s ")
        elif elapsed_s >= self._next_line_s:
            self._next_line_s += _LINE_EVERY_S
            self._out.write(f"loading {self._what}: {elapsed_s:.0f} s\n")
        self._out.flush()

    def clear(self) -> None:
        """Takes the spinner away."""
        if self._out.isatty():
            self._out.write("\r\033[K")
            self._out.flush()


def address(host: str, port: int) -> str:
    """The base URL for clients on this machine."""
    host = _WILDCARDS.get(host, host)
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"


def ready(url: str, models: Sequence[str], *, keys: bool = False) -> str:
    """The address, a curl line and three lines of Python, which work as they are.

    `keys`: the server has some; then the lines take the reader's from OPENAI_API_KEY.
    """
    if not models:
        return f"Listening on {url}, but no model can serve; 'openai-frontend check' says why.\n"
    body = json.dumps({"model": models[0], "messages": QUESTION})
    header = ' -H "Authorization: Bearer $OPENAI_API_KEY"' if keys else ""
    api_key = "" if keys else ', api_key="none"'
    sent = f"-H 'Content-Type: application/json'{header} -d {shlex.quote(body)}"
    asking = "Ask with a key in OPENAI_API_KEY from a shell:" if keys else "Ask from a shell:"
    create = f"model={json.dumps(models[0])}, messages={json.dumps(QUESTION)}"
    return "\n".join(
        [
            f"Ready on {url} with {', '.join(models)}. {asking}",
            "",
            f"curl {url}/chat/completions {sent}",
            "",
            "or from Python:",
            "",
            "from openai import OpenAI",
            f'client = OpenAI(base_url="{url}"{api_key})',
            f"print(client.chat.completions.create({create}).choices[0].message.content)",
            "",
        ]
    )


def exposure_warning(host: str) -> str | None:
    """One line for an address that others can reach, for nobody needs a key; else None."""
    if _is_loopback(host):
        return None
    return (
        f"warning: listening on {host or 'every address'} without API keys: "
        "whoever reaches this port can use the models (--keys-file, docs/access.md)\n"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
