"""Headers of a request that a model gets as parameters, which are strings."""

import re
from collections.abc import Iterable, Mapping

from openai_frontend.auth.authorization import KEY_HEADERS
from openai_frontend.errors import InvalidRequest
from openai_frontend.kserve.parameters import is_reserved

# A model, and what it logs, must not see them, whatever the pattern
_SECRET = KEY_HEADERS | {b"proxy-authorization", b"cookie"}
_MOST_HEADERS = 64
_MOST_BYTES = 8192
_LONGEST_NAME = 128


class ForwardedHeaders:
    """Selects headers by a pattern for their whole names."""

    def __init__(self, pattern: re.Pattern[str] | None) -> None:
        """None selects nothing."""
        self._pattern = pattern

    def select(self, headers: Iterable[tuple[bytes, bytes]]) -> Mapping[str, str] | None:
        """Values by names in lower case; those of a repeated header are joined by commas.

        None if the pattern is None. Raises InvalidRequest if a selected header is reserved, or if
        they are too many or too long.
        """
        if self._pattern is None:
            return None
        found: dict[str, str] = {}
        length = 0
        for key, value in headers:
            name = key.decode("latin-1").lower()
            if not self._selects(key.lower(), name):
                continue
            if is_reserved(name):
                message = f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
                raise InvalidRequest(message, param=name)
            text = value.decode("latin-1")
            found[name] = f"{found[name]}, {text}" if name in found else text
            length += len(key) + len(value)
        if len(found) > _MOST_HEADERS or length > _MOST_BYTES:
            raise InvalidRequest(
                f"The request has too many headers for its model: at most {_MOST_HEADERS}, and "
                f"{_MOST_BYTES} bytes, can be forwarded."
            )
        return found

    def _selects(self, key: bytes, name: str) -> bool:
        if key in _SECRET or len(name) > _LONGEST_NAME or self._pattern is None:
            return False
        return self._pattern.fullmatch(name) is not None
