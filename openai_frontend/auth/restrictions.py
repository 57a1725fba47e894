"""Restrictions of groups of APIs: a request needs a header with a secret value, besides its key."""

import hashlib
import hmac
from collections.abc import Iterable, Mapping

from openai_frontend.config.restricted_groups import Restricted, restricted
from openai_frontend.config.triton_options import OptionTexts


class Restriction:
    """One header with its value, of which only the digest is kept."""

    def __init__(self, required: Restricted) -> None:
        self.header = required.header
        self._name = required.header.lower().encode()
        self._digest = _digest(required.value.encode())

    def allows(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """`headers` have lower-case names; the first one with the name counts. The time does not
        depend on where the value differs.
        """
        sent = next((value for name, value in headers if name == self._name), None)
        return sent is not None and hmac.compare_digest(_digest(sent), self._digest)


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()


def restrictions(texts: OptionTexts, option: str) -> Mapping[str, Restriction]:
    """The restrictions of an option, by group."""
    by_group = restricted(texts, option)
    return {group: Restriction(each) for group, each in by_group.items()}
