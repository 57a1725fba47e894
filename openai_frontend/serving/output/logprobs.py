"""Log probabilities in OpenAI's two forms: for chat completions, and for completions.

A stream and a whole response use the same writer, token by token. A token's text comes from the
tokenizer, or else from the engine.
"""

import codecs
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from orjson import Fragment, dumps

from openai_frontend.generation import TokenLogprobs
from openai_frontend.serving.admission.model import Renders
from openai_frontend.serving.request.response_options import ResponseOptions
from openai_frontend.text_relay import AddToken
from schemas.logprobs import (
    ChatCompletionTokenLogprob,
    ChoiceLogprobs,
    CompletionLogprobs,
    TopLogprob,
)

# JSON has no minus infinity; OpenAI writes this.
_MIN_LOGPROB = -9999.0
_MAX_RENDERED = 4096  # tokens of one choice
_RESYNC_BYTES = 64  # of a prompt, that are searched for a token after one that is not in it
NO_PROMPT_LOGPROBS = "the model returned no log probabilities for the prompt"

Form = TypeVar("Form", bound="ChatLogprobs | TextLogprobs")
TokenBytes = Callable[[int], bytes | None]


class TokenNames:
    """Spells tokens: as text, or as `token_id:17` if the request asks for ids."""

    def __init__(self, token_bytes: TokenBytes, *, as_ids: bool) -> None:
        self._token_bytes = token_bytes
        self.as_ids = as_ids

    def raw(self, token_id: int, entry: Mapping[str, Any]) -> bytes:
        """The token's bytes; without a tokenizer, those of the engine's text."""
        raw = self._token_bytes(token_id)
        return (entry.get("decoded_token") or "").encode() if raw is None else raw

    def name(self, token_id: int, raw: bytes, *, prefix: str = "") -> str:
        r"""The token's text; the bytes of an incomplete character as `\xe2\x9c`."""
        return f"token_id:{token_id}" if self.as_ids else spelled(raw, prefix=prefix)


def spelled(raw: bytes, *, prefix: str = "") -> str:
    r"""A token's text; the bytes of an incomplete character as `\xe2\x9c`."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return prefix + "".join(f"\\x{byte:02x}" for byte in raw)


def _logprob(entry: Mapping[str, Any]) -> float:
    logprob = entry["logprob"]
    return _MIN_LOGPROB if logprob is None or logprob < _MIN_LOGPROB else float(logprob)


@dataclass(frozen=True, slots=True)
class Alternatives:
    """The tokens that are listed at a position: the likeliest, or the requested ones and its
    own.
    """

    top: int = 0
    token_ids: Sequence[int] = ()

    def of(self, position: TokenLogprobs) -> list[tuple[int, Mapping[str, Any]]]:
        """Likeliest first."""
        logprobs = {token_id: _logprob(entry) for token_id, entry in position.items()}
        return [(token_id, position[token_id]) for token_id in self.ranked(logprobs)]

    def ranked(self, logprobs: Mapping[int, float]) -> list[int]:
        """The ids of `of` among these, the sampled token first."""
        ranked = sorted(logprobs, key=logprobs.__getitem__, reverse=True)
        if self.token_ids:
            listed = {next(iter(logprobs)), *self.token_ids}
            return [token_id for token_id in ranked if token_id in listed]
        return ranked[: self.top]


class ChatLogprobs:
    """Chat completions' `logprobs`."""

    def __init__(self, names: TokenNames, alternatives: Alternatives) -> None:
        self._names = names
        self._alternatives = alternatives
        self._constant: dict[int, tuple[bytes, bytes]] = {}  # what `_constant_parts` returns
        self.on_rendered: AddToken | None = None  # called with each token of `fragment`

    def tokens(self, positions: Sequence[TokenLogprobs]) -> ChoiceLogprobs:
        """One entry for each token."""
        return {"content": [self._token(position) for position in positions], "refusal": None}

    def fragment(self, positions: Sequence[TokenLogprobs]) -> Fragment:
        """`tokens` as JSON, of constant parts for each token id: 4 us instead of 10."""
        return Fragment(
            b'{"content":[%s],"refusal":null}' % b",".join([self._json(each) for each in positions])
        )

    def _json(self, position: TokenLogprobs) -> bytes:
        logprobs = {token_id: _logprob(entry) for token_id, entry in position.items()}
        sampled, ids = next(iter(logprobs)), self._alternatives.ranked(logprobs)
        # orjson writes numbers in its own way
        values = dumps([logprobs[sampled], *[logprobs[each] for each in ids]])[1:-1].split(b",")
        constant = self._constant
        before, after = constant.get(sampled) or self._render(sampled, position)
        tops = []
        for at, each in enumerate(ids, start=1):
            start, end = constant.get(each) or self._render(each, position)
            tops.append(b"%s%s%s}" % (start, values[at], end))
        if self.on_rendered is not None:
            for each in (sampled, *ids):
                self.on_rendered(each, *self._constant[each])
        return b'%s%s%s,"top_logprobs":[%s]}' % (before, values[0], after, b",".join(tops))

    def _render(self, token_id: int, position: TokenLogprobs) -> tuple[bytes, bytes]:
        raw = self._names.raw(token_id, position[token_id])
        name = self._names.name(token_id, raw) if self._names.as_ids else None
        if len(self._constant) >= _MAX_RENDERED:
            self._constant.clear()
        self._constant[token_id] = parts = _constant_parts(raw, name)
        return parts

    def _token(self, position: TokenLogprobs) -> ChatCompletionTokenLogprob:
        sampled = next(iter(position.items()))
        top = [self._entry(*each) for each in self._alternatives.of(position)]
        return {**self._entry(*sampled), "top_logprobs": top}

    def _entry(self, token_id: int, entry: Mapping[str, Any]) -> TopLogprob:
        raw = self._names.raw(token_id, entry)
        return {
            "token": self._names.name(token_id, raw),
            "logprob": _logprob(entry),
            "bytes": list(raw),
        }


@lru_cache(maxsize=16384)
def _constant_parts(raw: bytes, name: str | None) -> tuple[bytes, bytes]:
    """The JSON of a token before and after its log probability; its name is its text if None."""
    token = dumps(spelled(raw) if name is None else name)
    return b'{"token":%s,"logprob":' % token, b',"bytes":%s' % dumps(list(raw))


class TextLogprobs:
    """Completions' `logprobs`, with each token's offset in the text so far."""

    def __init__(self, names: TokenNames, alternatives: Alternatives) -> None:
        self._names = names
        self._alternatives = alternatives
        self._offset = 0
        # a character counts with its last byte, so all its tokens have the offset of its start
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def prompt(
        self, text: str, token_ids: Sequence[int], positions: Sequence[TokenLogprobs | None]
    ) -> CompletionLogprobs:
        """An echoed prompt's tokens. A token that is not in the text, such as BOS, has length 0."""
        written = _empty()
        prompt = _PromptText(text.encode())
        for token_id, position in zip(token_ids, positions, strict=True):
            raw = self._names.raw(token_id, (position or {}).get(token_id, {}))
            skipped, shown = prompt.advance(raw)
            self._skip(skipped)
            self._add(written, token_id, position, shown)
        self._skip(prompt.rest())  # generated tokens follow the whole prompt
        return written

    def fragment(self, positions: Sequence[TokenLogprobs]) -> CompletionLogprobs:
        return self.tokens(positions)

    def tokens(self, positions: Sequence[TokenLogprobs]) -> CompletionLogprobs:
        """The next generated tokens."""
        written = _empty()
        for position in positions:
            token_id, entry = next(iter(position.items()))
            self._add(written, token_id, position, self._names.raw(token_id, entry))
        return written

    def _skip(self, text: bytes) -> None:
        self._offset += len(self._decoder.decode(text))

    def _add(
        self,
        written: CompletionLogprobs,
        token_id: int,
        position: TokenLogprobs | None,
        shown: bytes,
    ) -> None:
        entry = {} if position is None else position[token_id]
        written["tokens"].append(self._text(token_id, entry))
        written["token_logprobs"].append(None if position is None else _logprob(entry))
        written["top_logprobs"].append(None if position is None else self._tops(token_id, position))
        written["text_offset"].append(self._offset)
        self._skip(shown)

    def _text(self, token_id: int, entry: Mapping[str, Any]) -> str:
        raw = self._names.raw(token_id, entry)
        return self._names.name(token_id, raw, prefix="bytes:")

    def _tops(self, token_id: int, position: TokenLogprobs) -> dict[str, float]:
        """The likeliest tokens and, like OpenAI, the token itself."""
        chosen = {**dict(self._alternatives.of(position)), token_id: position[token_id]}
        return {self._text(each, entry): _logprob(entry) for each, entry in chosen.items()}


class _PromptText:
    """Finds a prompt's tokens in its text, in order. Some are not in it: special tokens, unknown
    characters, and text that the tokenizer has normalized.
    """

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._at = 0
        self._missed = False  # the previous token

    def advance(self, raw: bytes) -> tuple[bytes, bytes]:
        """The bytes before the next token and those of the token; both empty if it is not found."""
        # sentencepiece puts a space before the text
        forms = [form for form in (raw, raw.removeprefix(b" ")) if form]
        for form in forms:
            if self._text.startswith(form, self._at):
                self._missed = False
                return self._take(self._at, form)
        # The first token that is not here may be one that is nowhere, such as BOS: only the next
        # one shows that text was skipped.
        missed, self._missed = self._missed, True
        for form in forms if missed else ():
            start = self._text.find(form, self._at, self._at + _RESYNC_BYTES + len(form))
            if start >= 0 and not _continues_character(form):
                self._missed = False
                return self._take(start, form)
        return b"", b""

    def rest(self) -> bytes:
        """The bytes after the last token that was found."""
        return self._text[self._at :]

    def _take(self, start: int, form: bytes) -> tuple[bytes, bytes]:
        skipped, self._at = self._text[self._at : start], start + len(form)
        return skipped, form


def _continues_character(form: bytes) -> bool:
    """Whether the bytes begin within a character: they are found in many others."""
    return form[0] & 0xC0 == 0x80


def _empty() -> CompletionLogprobs:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def extended(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    """Two lists of tokens, such as an echoed prompt's and its completion's, as one."""
    return {
        "tokens": first["tokens"] + second["tokens"],
        "token_logprobs": first["token_logprobs"] + second["token_logprobs"],
        "top_logprobs": first["top_logprobs"] + second["top_logprobs"],
        "text_offset": first["text_offset"] + second["text_offset"],
    }


def logprobs_writer(model: Renders, options: ResponseOptions, form: type[Form]) -> Form:
    """A writer for one choice, in the form of its endpoint."""
    names = TokenNames(model.token_bytes, as_ids=options.tokens_as_ids)
    return form(names, Alternatives(options.logprobs or 0, options.logprob_token_ids))
