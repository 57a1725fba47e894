"""Asks a server whether it takes a kind of request at all."""

import http.client
import json
from collections.abc import Mapping
from typing import Any

from benchmarks.connection import connect
from benchmarks.request import MODEL, Prompt, request

_BAD_REQUEST = 400


def refusal(port: int, options: Mapping[str, Any]) -> str | None:
    """The server's reason for a 400; None where it answers.

    Another failure is none of these, and shows in the load itself.
    """
    message = request(
        options.get("kind", "chat"),
        options.get("model", MODEL),
        stream=False,
        tokens=1,
        prompt=Prompt(options.get("prompt_bytes", 0)),
    )
    with connect(port) as connection:
        connection.sendall(message)
        response = http.client.HTTPResponse(connection)
        response.begin()
        body = response.read()
    if response.status != _BAD_REQUEST:
        return None
    return str(json.loads(body)["error"]["message"])
