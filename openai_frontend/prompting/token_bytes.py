"""The bytes of each token of a vocabulary, derived from the tokenizer's decoder or read from a
tiktoken file.

What a decoder does to a whole text (it drops the space that sentencepiece puts before the first
word) is not done here.
"""

import base64
import binascii
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openai_frontend.errors import InvalidRequest

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer

# One step of a decoder on one token: returns text for the next step, or bytes, which are final
_Step = Callable[[str], str | bytes]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


_vocabularies = itertools.count()


class TokenBytes:
    """Token id -> bytes, cached. `vocabulary` is a number that no other object has."""

    def __init__(self, tokenizer: "FastTokenizer") -> None:
        self.vocabulary = next(_vocabularies)
        self._tokenizer = tokenizer
        self._steps = tuple(_steps(_declared(tokenizer.decoder)))
        # an added token is its own text, in any alphabet
        self._known: dict[int, bytes | None] = {
            token_id: _utf8(token.content)
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
        }

    def get(self, token_id: int) -> bytes | None:
        """None for an unknown id."""
        try:
            return self._known[token_id]
        except KeyError:
            return self._find(token_id)

    def _find(self, token_id: int) -> bytes | None:
        token = self._tokenizer.id_to_token(token_id)
        if token is None:  # not cached: there are more unknown ids than tokens
            return None
        return self._known.setdefault(token_id, self._walk(token))

    def _walk(self, token: str) -> bytes:
        for step in self._steps:
            done = step(token)
            if isinstance(done, bytes):
                return done
            token = done
        return _utf8(token)


def _declared(decoder: Any) -> Mapping[str, Any]:
    """The decoder as in tokenizer.json."""
    return {} if decoder is None else dict(json.loads(decoder.__getstate__()))


def _steps(decoder: Mapping[str, Any]) -> Iterator[_Step]:
    """The decoder's steps for single tokens; steps for joined text are left out."""
    for inner in decoder.get("decoders", [decoder]):
        if inner.get("type") in _STEPS:
            yield partial(_STEPS[inner["type"]], inner)


def _byte_level(decoder: Mapping[str, Any], token: str) -> bytes:
    try:
        return bytes(_BYTES[letter] for letter in token)
    except KeyError:  # a token outside of the alphabet is its own text
        return _utf8(token)


def _byte_fallback(decoder: Mapping[str, Any], token: str) -> str | bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return token if match is None else bytes([int(match[1], 16)])


def _replace(decoder: Mapping[str, Any], token: str) -> str:
    text = decoder["pattern"].get("String")  # a regex pattern can span tokens
    return token if text is None else token.replace(text, decoder["content"])


def _metaspace(decoder: Mapping[str, Any], token: str) -> str:
    return token.replace(decoder["replacement"], " ")


def _word_piece(decoder: Mapping[str, Any], token: str) -> str:
    prefix = decoder["prefix"]
    return token.removeprefix(prefix) if token.startswith(prefix) else f" {token}"


def _end_of_word(decoder: Mapping[str, Any], token: str) -> str:
    return token.replace(decoder["suffix"], " ")


# Decoder type in tokenizer.json -> its step
_STEPS: Mapping[str, Callable[[Mapping[str, Any], str], str | bytes]] = {
    "ByteLevel": _byte_level,
    "ByteFallback": _byte_fallback,
    "Replace": _replace,
    "Metaspace": _metaspace,
    "WordPiece": _word_piece,
    "BPEDecoder": _end_of_word,
}


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _alphabet() -> dict[str, int]:
    """GPT-2's byte alphabet: printable Latin-1 bytes are themselves, the others follow 255."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(0x100) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + rank): byte for rank, byte in enumerate(others)}


_BYTES = _alphabet()


class TiktokenDecoder:
    """Decodes OpenAI's token ids, for clients that send them to models with another tokenizer.

    Never encodes. Ids of special tokens, which the files do not contain, are refused.
    """

    def __init__(self, tokens: Mapping[int, bytes]) -> None:
        self._tokens = tokens

    def decode(self, token_ids: Sequence[int], *, param: str) -> str:
        """The text; a character that the client cut becomes U+FFFD."""
        try:
            text = b"".join([self._tokens[token_id] for token_id in token_ids])
        except KeyError as error:
            message = (
                f"Invalid '{param}': unknown token {error.args[0]} in the tiktoken vocabulary."
            )
            raise InvalidRequest(message, param=param) from None
        return text.decode("utf-8", "replace")


def read_tiktoken(path: Path) -> TiktokenDecoder:
    """Read a file such as cl100k_base.tiktoken: per line a token's bytes in base64 and its id.

    Raises OSError, or ValueError with a message that names the line.
    """
    tokens = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            text, token_id = line.split()
            tokens[int(token_id)] = base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error):
            raise ValueError(f"line {number} is not a valid tiktoken entry") from None
    if not tokens:
        raise ValueError("it holds no tokens")
    return TiktokenDecoder(tokens)
