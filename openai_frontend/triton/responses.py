"""The responses of one request as an asynchronous iterator of bursts."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, Protocol

from openai_frontend.admission.deferred_release import DeferredRelease
from openai_frontend.text_relay import AddToken, EventNumbers, FrameWriter, Resume, SegmentEnd
from openai_frontend.triton import _core, error_codes


class UnreleasedObserver(Protocol):
    """Counts unreleased requests against a limit."""

    def retain(self, model_name: str, input_bytes: int) -> None:
        """A request was cancelled; the model may still run it, and Triton keeps its inputs."""

    def release(self, model_name: str, input_bytes: int) -> None:
        """Triton has released the request and the model has ended it, or neither ever will."""


class UnreleasedRequests:
    """Cancelled requests that Triton or the model still has. Used on the event loop.

    Triton itself drops only requests in its queues. A running model continues unless it checks for
    cancellation, so a client's disconnect does not end its request. A decoupled model may let
    Triton release the request early: such a request ends with its last response.
    """

    def __init__(self) -> None:
        self.observers: list[UnreleasedObserver] = []
        # Keeps the streams alive until their release
        self._requests: dict[object, tuple[str, int, DeferredRelease | None]] = {}

    def __contains__(self, stream: object) -> bool:
        return stream in self._requests

    def add(
        self,
        stream: object,
        model_name: str,
        input_bytes: int,
        deferred: DeferredRelease | None = None,
    ) -> None:
        """Add a cancelled stream; `deferred` belongs to the client's request."""
        if deferred is not None:
            deferred.retain()
            input_bytes = 0 if deferred.counts_inputs else input_bytes
        self._requests[stream] = (model_name, input_bytes, deferred)
        for observer in self.observers:
            observer.retain(model_name, input_bytes)

    def remove(self, stream: object) -> None:
        """Remove a released or abandoned stream. Ignores unknown ones."""
        if (known := self._requests.pop(stream, None)) is not None:
            model_name, input_bytes, deferred = known
            for observer in self.observers:
                observer.release(model_name, input_bytes)
            if deferred is not None:
                deferred.release()

    def clear(self) -> None:
        """Remove all streams: the core has stopped."""
        for stream in [*self._requests]:
            self.remove(stream)


InferenceResponse = _core.InferenceResponse
Tensor = _core.Tensor

TensorInput = tuple[str, Sequence[int], bytes | bytearray | memoryview]
"""Triton datatype name, shape, and the tensor's bytes in Triton's layout."""


class Responses(Protocol):
    """A stream of responses, as consumers use it."""

    def __aiter__(self) -> "Responses": ...

    async def __anext__(self) -> list[InferenceResponse]: ...

    def cancel(self) -> None: ...


class ResponseStream:
    """One request in flight. One consumer, on the event loop that started the server.

    Each step returns all responses since the previous step, at least one, in order. Iteration ends
    after the last response, or with the error of an error response (final or not) once the
    responses before it were returned.
    """

    __slots__ = (
        "__weakref__",
        "_cancellation",
        "_cancelled",
        "_deferred",
        "_ended",
        "_error",
        "_failed",
        "_loop",
        "_native",
        "_unreleased",
        "model_name",
        "seen",
        "since_s",
    )

    def __init__(
        self,
        native: _core.ResponseStream,
        loop: asyncio.AbstractEventLoop,
        model_name: str = "",
        unreleased: UnreleasedRequests | None = None,
        deferred: DeferredRelease | None = None,
    ) -> None:
        """`unreleased` contains this request from its cancellation until Triton has released it and
        the model has ended it, and `deferred` is retained in that time.
        """
        self._native = native
        self._loop = loop
        self._ended = False
        self._cancelled = False  # by the consumer
        self._cancellation: Callable[[], Exception] | None = None
        # Not the exceptions themselves: they would form reference cycles.
        self._error: tuple[int, str] | None = None
        self._failed: Callable[[], Exception] | None = None
        self._unreleased = unreleased
        self._deferred = deferred
        self.model_name = model_name
        self.seen: tuple[int, int] | None = None  # this and since_s belong to the stall detector
        self.since_s = 0.0

    @property
    def received(self) -> int:
        """Number of responses received, including relayed ones."""
        return self._native.received

    @property
    def finished(self) -> bool:
        """Whether Triton has sent the last response, even if it was not consumed yet."""
        return self._native.finished

    @property
    def unreleased(self) -> bool:
        """Whether the consumer has cancelled the request and it has not ended yet."""
        return self._unreleased is not None and self in self._unreleased

    @property
    def done(self) -> bool:
        """Whether neither a response nor the release of a cancelled request is expected."""
        ended = self._cancelled or self._failed is not None or self._native.finished
        return ended and not self.unreleased

    def fail(self, error: Callable[[], Exception]) -> None:
        """Cancel the request; the consumer gets `error()` after the received responses.

        It replaces Triton's own error.
        """
        if self._failed is not None:
            return
        self._failed = error
        self.cancel_keep_output()
        waiter, self._native.waiter = self._native.waiter, None
        if isinstance(waiter, asyncio.Future) and not waiter.done():
            waiter.set_result(None)

    def cancel(self) -> None:
        """Cancel the request and stop relaying. May be called at any time and repeatedly."""
        self._cancelled = True
        self._native.stop_relay()
        input_bytes = self._native.cancel()
        if input_bytes is not None and self._unreleased is not None:
            self._await_release(self._unreleased, input_bytes)

    def _await_release(self, unreleased: UnreleasedRequests, input_bytes: int) -> None:
        if self in unreleased:
            return
        released = self._loop.create_future()
        released.add_done_callback(lambda _: unreleased.remove(self))
        self._native.release_waiter = released  # from now on, outputs of responses are not kept
        unreleased.add(self, self.model_name, input_bytes, self._deferred)

    def abandon(self) -> None:
        """Do not wait for the release: the engine has died or hangs, and Triton may never release
        the request.
        """
        unreleased, self._unreleased = self._unreleased, None
        if unreleased is not None:
            unreleased.remove(self)

    def cancel_keep_output(self, cancellation: Callable[[], Exception] | None = None) -> None:
        """Cancel the request; the consumer still gets received responses and the final error.

        If the backend reports the cancellation or ends without an output, the error is
        `cancellation()`.
        """
        self._cancellation = self._cancellation or cancellation
        self._native.cancel()

    def answered_late(self) -> bool:
        """Whether anything has arrived since the consumer left that shows a working backend.

        That is a response, or the end of the cancelled request.
        """
        errors = [response.error for response in self._native.take()]
        return any(error is None or error[0] == error_codes.CANCELLED for error in errors)

    def relay(
        self,
        output: str,
        before: bytes,
        after: bytes,
        write: FrameWriter,
        numbers: EventNumbers | None = None,
    ) -> Resume:
        """Pass responses with only a text named `output` to `write` instead of the iterator.

        Each call of `write` gets the text since the last call, as a JSON string between `before`
        and `after`. A response that arrives while others wait in the iterator goes to the iterator
        too, which keeps the order. If `write` returns True, it is not called again until the
        returned function is called, or 64 KiB have come, and then gets all text since. Its
        exceptions are raised by the iterator.

        A `StreamWriter` is called without Python. `numbers`: see `TextRelay.take`.
        """
        self._native.relay(output, before, after, write, numbers)
        return self._native.resume_relay

    def relay_logprobs(
        self,
        output: str,
        vocabulary: int,
        around: tuple[bytes, bytes, bytes],
        top: int,
        write: FrameWriter,
    ) -> tuple[AddToken, Resume]:
        """Like `relay`, for responses with a text and the log probabilities of its tokens, of which
        each becomes a frame (`TextRelay.take_logprobs`).

        `vocabulary` is the number of the tokens' vocabulary; streams share what is known of it.
        """
        self._native.relay_logprobs(output, *around, vocabulary, top, write)
        return partial(_core.add_token, vocabulary), self._native.resume_relay

    def relay_segments(
        self, output: str, write: FrameWriter, numbers: EventNumbers | None = None
    ) -> "SegmentRelay":
        """Like `relay`, but only for the segments that the returned object begins.

        Once a segment has ended, the iterator returns all of its text in one response, with the
        number of its tokens in `relayed`, and then what follows.
        """
        self._native.relay_segments(output, write, numbers)
        return SegmentRelay(self._native)

    def __aiter__(self) -> "ResponseStream":
        return self

    async def __anext__(self) -> list[InferenceResponse]:
        if self._ended:
            self._end()
        responses = self._native.take() or await self._wait()
        if not responses:
            self._end()
        if responses[-1].final:
            self._ended = True
        for response in responses:  # all of them: a backend may send an error, and then the end
            if response.error is not None:
                return self._until_error(responses)
        if self._ended and self._cancellation is not None and not responses[-1].names:
            return self._cut(responses[:-1])
        return responses

    def _cut(self, responses: list[InferenceResponse]) -> list[InferenceResponse]:
        """Return what came before an empty end: after a cancellation, outputs may be missing."""
        self._error = error_codes.CANCELLED, ""
        if not responses:
            self._end()
        return responses

    def _until_error(self, responses: list[InferenceResponse]) -> list[InferenceResponse]:
        """Return the responses before the first error, which ends the stream, final or not."""
        at = next(at for at, response in enumerate(responses) if response.error is not None)
        self._ended = True
        self._error = responses[at].error
        self.cancel_keep_output()
        if at == 0:
            self._end()
        return responses[:at]

    def _end(self) -> NoReturn:
        error, self._error = self._error, None
        if self._failed is not None and (error is not None or not self._ended):
            self._ended = True
            raise self._failed()
        if error is None:
            raise StopAsyncIteration
        code, message = error
        if code == error_codes.CANCELLED and not self._cancelled:
            # The client is still there, and RequestCancelled would leave it without an answer.
            if self._cancellation is not None:
                raise self._cancellation()
            code = error_codes.INTERNAL
        raise error_codes.to_exception(code, message)

    async def _wait(self) -> list[InferenceResponse]:
        if self._failed is not None:
            return []
        waiter = self._loop.create_future()
        self._native.waiter = waiter
        try:
            await waiter
        except asyncio.CancelledError:
            # Flush a slow client's text: the cancelled task may write an error, which must come
            # after it.
            self._native.resume_relay()
            raise
        finally:
            self._native.waiter = None
        return self._native.take()


class SegmentRelay:
    """Begins the segments of a parsed stream (`generation.SegmentRelay`)."""

    __slots__ = ("_begin_json", "_begin_text", "resume")

    def __init__(self, native: _core.ResponseStream) -> None:
        self._begin_text = native.relay_text
        self._begin_json = native.relay_json
        self.resume = native.resume_relay

    def begin(self, around: Sequence[bytes], end: SegmentEnd) -> bool:
        if end.json is not None:
            return self._begin_json(list(around), *end.json, end.max_bytes)
        return self._begin_text(list(around), list(end.markers), end.max_bytes)


def native_inputs(inputs: Mapping[str, TensorInput]) -> dict[str, Any]:
    """Return the inputs as a plain dict, as the extension requires."""
    return inputs if isinstance(inputs, dict) else dict(inputs)
