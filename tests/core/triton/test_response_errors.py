"""Errors at any position in a stream."""

import asyncio
from dataclasses import dataclass

import pytest

from openai_frontend.errors import GatewayError, InferenceFailed, ModelUnavailable
from openai_frontend.triton.error_codes import CANCELLED, INTERNAL
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


CANCELLED_BY_BACKEND = [[Response("a")], [Response(final=True, error=(CANCELLED, "cancelled"))]]


async def test_backend_that_cancels_has_failed() -> None:
    """The consumer is still there and needs an error."""
    assert await read(Native([*CANCELLED_BY_BACKEND])) == (["a"], "cancelled")


async def test_cancellation_with_its_own_error() -> None:
    """It replaces the backend's report of the cancellation, but no other error."""
    ended = []
    for bursts in (CANCELLED_BY_BACKEND, [[Response("a"), BROKEN]]):
        native = Native([*bursts])
        stream = ResponseStream(native, asyncio.get_running_loop())  # type: ignore[arg-type]
        stream.cancel_keep_output(lambda: ModelUnavailable("stopping"))
        await anext(stream)
        with pytest.raises(GatewayError) as error:
            await anext(stream)
        ended.append((type(error.value), str(error.value)))

    assert ended == [(ModelUnavailable, "stopping"), (InferenceFailed, "it broke")]


async def test_stream_without_an_error_is_not_cancelled() -> None:
    native = Native([[Response("a")], [Response("b", final=True)]])

    assert (await read(native), native.cancelled) == ((["a", "b"], None), False)
