"""One system message at the beginning, for templates that refuse or leave out any other."""

from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]

_ROLES = ("system", "developer")


def with_leading_system(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages with the texts of all system messages in the first one; the same object if they
    are there already.
    """
    given = [message for message in messages if message.get("role") in _ROLES]
    if not given or (len(given) == 1 and messages[0] is given[0]):
        return messages
    parts = [part for message in given for part in _parts(message.get("content"))]
    others = [message for message in messages if message.get("role") not in _ROLES]
    return [{**given[0], "role": "system", "content": parts}, *others]


def _parts(content: Any) -> Sequence[Mapping[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
