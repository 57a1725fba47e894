"""Errors at any position in a stream."""

import asyncio
from dataclasses import dataclass

import pytest

from openai_frontend.errors import InferenceFailed
from openai_frontend.triton.error_codes import INTERNAL
from openai_frontend.triton.responses import ResponseStream


@dataclass
class Response:
    """The attributes of a response that a stream reads."""

    text: str = ""
    final: bool = False
    error: tuple[int, str] | None = None


BROKEN = Response(error=(INTERNAL, "it broke"))
END = Response(final=True)


class Native:
    """Returns prepared bursts."""

    waiter = None

    def __init__(self, bursts: list[list[Response]]) -> None:
        self._bursts = bursts
        self.cancelled = False

    def take(self) -> list[Response]:
        return self._bursts.pop(0)

    def cancel(self) -> None:
        self.cancelled = True


async def read(native: Native) -> tuple[list[str], str | None]:
    """The returned texts, and then the error."""
    stream = ResponseStream(native, asyncio.get_running_loop())  # type: ignore[arg-type]
    texts: list[str] = []
    try:
        async for responses in stream:
            texts += [response.text for response in responses]  # type: ignore[attr-defined]
    except InferenceFailed as error:
        return texts, error.message
    return texts, None


@pytest.mark.parametrize(
    "bursts",
    [
        [[Response("a"), Response(final=True, error=BROKEN.error)]],
        [[Response("a"), BROKEN, END]],
        [[Response("a"), BROKEN], [END]],
        [[Response("a")], [BROKEN], [END]],
        [[Response("a"), BROKEN, Response("b"), END]],
        [[Response("a"), BROKEN, Response("b")], [END]],
    ],
    ids=["final", "one burst", "end apart", "alone", "more after it", "more after it, end apart"],
)
async def test_error_ends_the_stream_at_any_position(bursts: list[list[Response]]) -> None:
    """Earlier responses are returned, then the error is raised; later responses are dropped."""

    native = Native(bursts)

    assert (await read(native), native.cancelled) == ((["a"], "it broke"), True)


async def test_stream_without_an_error_is_not_cancelled() -> None:
    native = Native([[Response("a")], [Response("b", final=True)]])

    assert (await read(native), native.cancelled) == ((["a", "b"], None), False)
