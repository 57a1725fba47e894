"""Reads what a request brings."""

from starlette.types import Receive

from openai_frontend.errors import RequestCancelled


async def read_body(receive: Receive) -> bytes:
    """The whole body; most come in one message. Raises where the client goes before it is there."""
    pieces = []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestCancelled("The client went away.")
        pieces.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(pieces)
