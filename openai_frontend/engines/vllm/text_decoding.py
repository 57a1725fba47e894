"""Text of a request's token ids: token by token for a stream, at once for a whole answer.

vLLM's detokenizer costs 20 us to create and 1.5 us per token; only requests with stop strings, or
with special tokens that have no spaces between them, need it.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol

from openai_frontend.triton._core import BoundedDecodeStream

logger = logging.getLogger(__name__)

# Tokens of the prompt with which decoding starts: enough for spaces and split characters. vLLM uses
# the whole prompt, which blocks the event loop 20 ms for 100,000 tokens.
_PROMPT_END = 8

_REPLACEMENT = "\ufffd"  # in place of invalid or incomplete bytes


class OutputText(Protocol):
    """Text of one request's output. `step` and `tokenizer` are for `DeltaSink.text_stream`; no
    step if tokens are not sent one by one, or if a stop string may end the output.
    """

    tokenizer: Any
    step: Any

    def more(self, token_ids: list[int]) -> str:
        """Text that these ids add, before the end and without stop strings."""

    def take(self, token_ids: list[int], *, ended: bool, stopped: bool) -> "Taken":
        """Text that these ids add, where a stop string may end the output. `stopped`: by the last
        id, whose text is left out unless the request wants it.
        """


Taken = tuple[str, list[int], str | None]
"""Text, the ids up to a stop string, and that string."""


class TextDecoding:
    """Decodes the ids of one fast tokenizer."""

    def __init__(self, of_vllm: Any, tokenizer: Any) -> None:
        """The tokenizer as vLLM has it, and the one of tokenizers within."""
        self.tokenizer = tokenizer
        self._of_vllm = of_vllm
        self._is_joined = _joins_texts(tokenizer.decoder)

    @classmethod
    def of(cls, tokenizer: Any) -> "TextDecoding | None":
        """None for a tokenizer that vLLM decodes with Python, and without a tokenizer."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer

        made = _detokenizer(tokenizer, "", SamplingParams(), [])
        is_fast = isinstance(made, FastIncrementalDetokenizer)
        return cls(tokenizer, made.tokenizer) if is_fast else None

    def text(self, request: Any, prompt: Sequence[int], *, whole: bool) -> OutputText:
        """Text of the output of a request of vLLM, after its prompt."""
        params = request.sampling_params
        end = list(prompt[-_PROMPT_END:])
        skip = params.skip_special_tokens
        if params.stop or not (skip or params.spaces_between_special_tokens):
            return VLLMText(self, request, end)
        last = params.include_stop_str_in_output
        if whole and self._is_joined:
            return WholeText(self, end, skip=skip, includes_stop=last)
        return StreamedText(self, end, skip=skip, includes_stop=last)

    def stream(self, end: list[int], *, skip: bool) -> BoundedDecodeStream:
        """Decode id by id, after the end of a prompt. `skip` leaves out special tokens."""
        import tokenizers.decoders

        make = partial(tokenizers.decoders.DecodeStream, skip_special_tokens=skip)
        decode = partial(self.tokenizer.decode, skip_special_tokens=skip)
        before = self._decoded(end, skip=skip)
        if before is not None and not before.endswith(_REPLACEMENT):
            return BoundedDecodeStream(make, decode, end)
        stream = BoundedDecodeStream(make, decode)
        for token_id in end:  # its last character is not complete, and begins the output
            stream.step(self.tokenizer, token_id)
        return stream

    def whole(self, end: list[int], token_ids: list[int], *, skip: bool) -> str | None:
        """All text of an output, as `stream` gives it piece by piece. None if it has invalid or
        incomplete bytes: only the stream knows which of them it shows.
        """
        before = self._decoded(end, skip=skip)
        text = self._decoded(end + token_ids, skip=skip)
        if before is None or text is None or not text.startswith(before):
            return None
        if before.endswith(_REPLACEMENT):
            return None
        added = text[len(before) :]
        return None if _REPLACEMENT in added else added

    def _decoded(self, token_ids: list[int], *, skip: bool) -> str | None:
        """None if the tokenizer fails; a stream names the failure."""
        try:
            text: str = self.tokenizer.decode(token_ids, skip_special_tokens=skip)
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException:  # noqa: BLE001  a panic in Rust code is not an Exception
            return None
        return text

    def detokenizer(self, request: Any, end: list[int]) -> Any:
        """vLLM's own, which continues after the end of a prompt."""
        made = _detokenizer(self._of_vllm, request.request_id, request.sampling_params, end)
        self.bound(made, end)
        return made

    def bound(self, detokenizer: Any, prompt: Sequence[int] | None) -> None:
        """Limit what vLLM's detokenizer decodes per token, however many tokens complete no
        character. See `_core.BoundedDecodeStream`.
        """
        end = list((prompt or ())[-_PROMPT_END:])
        detokenizer.stream = self.stream(end, skip=detokenizer.skip_special_tokens)


def _detokenizer(tokenizer: Any, request_id: str, params: Any, prompt: list[int]) -> Any:
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer

    request = SimpleNamespace(
        request_id=request_id, sampling_params=params, prompt_token_ids=prompt
    )
    return IncrementalDetokenizer.from_new_request(tokenizer, request)


class StreamedText:
    """Decoded token by token."""

    def __init__(
        self, decoding: TextDecoding, end: list[int], *, skip: bool, includes_stop: bool
    ) -> None:
        self.tokenizer = decoding.tokenizer
        self.step = decoding.stream(end, skip=skip).step
        self._includes_stop = includes_stop

    def more(self, token_ids: list[int]) -> str:
        return "".join(map(self._text, token_ids))

    def take(self, token_ids: list[int], *, ended: bool, stopped: bool) -> Taken:
        shown = token_ids[:-1] if stopped and not self._includes_stop else token_ids
        return self.more(shown), token_ids, None

    def _text(self, token_id: int) -> str:
        try:
            return self.step(self.tokenizer, token_id) or ""
        except (OverflowError, TypeError):  # an id beyond 32 bits, which vLLM leaves out, too
            logger.exception("invalid token id: %r", token_id)
            return ""


class WholeText:
    """Decoded once, at the end: a client that gets a whole answer sees no part of it."""

    step = None

    def __init__(
        self, decoding: TextDecoding, end: list[int], *, skip: bool, includes_stop: bool
    ) -> None:
        self.tokenizer = decoding.tokenizer
        self._decoding = decoding
        self._end = end
        self._skip = skip
        self._includes_stop = includes_stop
        self._token_ids: list[int] = []

    def more(self, token_ids: list[int]) -> str:
        self._token_ids += token_ids
        return ""

    def take(self, token_ids: list[int], *, ended: bool, stopped: bool) -> Taken:
        shown = token_ids[:-1] if stopped and not self._includes_stop else token_ids
        self._token_ids += shown
        return self._text() if ended else "", token_ids, None

    def _text(self) -> str:
        text = self._decoding.whole(self._end, self._token_ids, skip=self._skip)
        if text is not None:
            return text
        stream = StreamedText(self._decoding, self._end, skip=self._skip, includes_stop=True)
        return stream.more(self._token_ids)


class VLLMText:
    """Decoded by vLLM's detokenizer, which also looks for stop strings."""

    step = None

    def __init__(self, decoding: TextDecoding, request: Any, end: list[int]) -> None:
        self.tokenizer = decoding.tokenizer
        self._detokenizer = decoding.detokenizer(request, end)

    def more(self, token_ids: list[int]) -> str:
        return self.take(token_ids, ended=False, stopped=False)[0]

    def take(self, token_ids: list[int], *, ended: bool, stopped: bool) -> Taken:
        detokenizer = self._detokenizer
        before = detokenizer.num_output_tokens()
        stop_string = detokenizer.update(token_ids, stopped)
        kept = token_ids[: detokenizer.num_output_tokens() - before]
        text = detokenizer.get_next_output_text(ended or stop_string is not None, True)
        return text, kept, stop_string


# Decoders whose text of a part of the ids, after an earlier part, is a part of their text of all
_JOINED = ("ByteLevel", "ByteFallback", "Fuse", "Metaspace", "WordPiece")


def _joins_texts(decoder: Any) -> bool:
    """Whether the text of all ids is what a stream's pieces add up to."""
    if decoder is None:  # spaces between tokens
        return True
    try:
        declared = json.loads(decoder.__getstate__())
    except Exception:  # noqa: BLE001  tokenizers raises no other for a decoder in Python
        return False
    return all(map(_joins, declared.get("decoders", [declared])))


def _joins(decoder: Mapping[str, Any]) -> bool:
    match decoder["type"]:
        case "Replace":
            return "String" in decoder["pattern"]
        case "Strip":
            return bool(decoder["start"] <= 1 and decoder["stop"] == 0)
        case kind:
            return kind in _JOINED
