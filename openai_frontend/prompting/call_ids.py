"""Ids of tool calls for templates that accept nine letters and digits only, as Mistral's do.

Histories have ids of other models and clients, such as `call_` and 24 characters.
"""

import hashlib
import itertools
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]

_LENGTH = 9
_ALPHABET = string.digits + string.ascii_letters
_FITS = re.compile(rf"[0-9A-Za-z]{{{_LENGTH}}}")


def with_short_ids(messages: Sequence[Message]) -> list[Message]:
    """The messages with nine letters and digits instead of other ids.

    Different ids stay different. An id has the same form in every turn, so prompts share a prefix.
    """
    ids = dict.fromkeys(_ids(messages))
    used = {id for id in ids if _FITS.fullmatch(id)}
    short: dict[str, str] = {}
    for id in ids:
        if id not in used:
            short[id] = _unused(id, used)
            used.add(short[id])
    return [_replaced(message, short) for message in messages] if short else [*messages]


def _ids(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        named = [*(call.get("id") for call in message.get("tool_calls") or ())]
        yield from (id for id in (*named, message.get("tool_call_id")) if isinstance(id, str))


def _unused(id: str, used: set[str]) -> str:
    forms = (_short(f"{attempt}:{id}") for attempt in itertools.count())
    return next(form for form in forms if form not in used)


def _short(text: str) -> str:
    number = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8])
    digits = []
    for _ in range(_LENGTH):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(digits)


def _replaced(message: Message, short: Mapping[str, str]) -> Message:
    replaced = dict(message)
    if message.get("tool_calls"):
        replaced["tool_calls"] = [_with_id(call, "id", short) for call in message["tool_calls"]]
    return _with_id(replaced, "tool_call_id", short)


def _with_id(holder: Message, key: str, short: Mapping[str, str]) -> Message:
    return {**holder, key: short[holder[key]]} if holder.get(key) in short else holder
