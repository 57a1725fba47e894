"""One choice of a stream that a parser reads: what its deltas say, as frames."""

from collections.abc import Mapping
from typing import Any

from openai_frontend.generation import TokenLogprobs
from openai_frontend.parsing.events import ContentText
from openai_frontend.serving.output.chat_message import ChatDeltas, Delta
from openai_frontend.serving.output.logprobs import ChatLogprobs
from openai_frontend.serving.output.output_parsing import ParsedDelta
from openai_frontend.serving.request.response_options import ResponseOptions
from openai_frontend.serving.request.tools import Tools
from openai_frontend.sse import ChunkFrames


class ParsedChoiceFrames:
    """A frame for each thing that is said; what is told of tokens goes with the next frame.

    Tokens that say nothing yet, such as those of a marker, wait for the frame that they lead to, so
    that each frame stands for all tokens since the one before.
    """

    def __init__(
        self, index: int, frames: ChunkFrames, details: ResponseOptions, tools: Tools
    ) -> None:
        self._index = index
        self._frames = frames
        self._details = details
        self._deltas = ChatDeltas(tools)
        self._positions: list[TokenLogprobs] = []
        self._ids: list[int] = []

    def feed(self, delta: ParsedDelta, logprobs: ChatLogprobs | None) -> bytes:
        """The frames of what a delta says; `logprobs` writes them where they were asked for."""
        if self._details.plain:
            return b"".join([self._frame(each) for each in self._said(delta)])
        if logprobs is not None:
            self._positions += delta.logprobs or ()
        if self._details.token_ids:
            self._ids += delta.token_ids
        said = [*self._said(delta)]
        if not said and delta.finish_reason is not None and (self._positions or self._ids):
            said = [{}]
        return b"".join([self._frame(each, *self._of_tokens(logprobs)) for each in said])

    def _said(self, delta: ParsedDelta) -> list[Delta]:
        events = delta.events
        if len(events) == 1 and type(events[0]) is ContentText:  # the usual token
            return [{"content": events[0].text}]
        return self._deltas.of(events)

    def _frame(
        self,
        delta: Delta,
        logprobs: Mapping[str, Any] | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> bytes:
        return self._frames.delta(self._index, delta, logprobs, fields)

    def _of_tokens(
        self, logprobs: ChatLogprobs | None
    ) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
        """What is told of the tokens that waited, which wait no longer."""
        positions, ids = self._positions, self._ids
        self._positions, self._ids = [], []
        told = None if logprobs is None or not positions else logprobs.tokens(positions)
        return told, {"token_ids": ids} if self._details.token_ids else None
