"""Decodes OpenAI's token ids with a tiktoken vocabulary file, for clients that send such ids to
models with another tokenizer. Never encodes, never downloads.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path

from openai_frontend.errors import InvalidRequest


class TiktokenDecoder:
    """Token ids to text. Ids of special tokens, which the files do not contain, are refused."""

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


def read(path: Path) -> TiktokenDecoder:
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
