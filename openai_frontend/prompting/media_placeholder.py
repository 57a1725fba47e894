"""A chat template's placeholder for an image or audio, and how often a prompt contains it.

Found by rendering, not by reading the template: a template may write the placeholder in a macro, a
loop or a branch.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from openai_frontend.errors import InvalidRequest

Message = Mapping[str, Any]

KINDS = ("image", "audio")  # of media, as templates know them

_TEXT = {"type": "text", "text": "probe-2c9e"}
_NUMBER = re.compile(r"\d")
_PRINTED = re.compile("[\"']type[\"']")  # a template that prints the parts as they are


def probe(kind: str, render: Callable[[Sequence[Message]], str | None]) -> str:
    """The text that a template adds for one more image or audio; "" if it ignores them.

    `render` gets the content of the message; None if the template rejects it.
    """
    none, one, two = (render([*[{"type": kind}] * items, _TEXT]) for items in range(3))
    if one is None or _TEXT["text"] not in one or _PRINTED.search(one):
        return ""
    return _added(one, two or "") or _added(none or "", one)


def _added(short: str, long: str) -> str:
    """The one piece of text by which the second is longer; "" if they differ otherwise."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(short, long, strict=False))
    start, more = sum(1 for _ in same), len(long) - len(short)
    if more <= 0 or long[:start] + long[start + more :] != short:
        return ""
    return long[start : start + more]


def only_question(messages: Sequence[Message]) -> str:
    """The text of the only message, for a model that applies a template itself.

    Raises InvalidRequest for other conversations.
    """
    if len(messages) != 1 or messages[0]["role"] != "user":
        raise InvalidRequest(
            "Invalid 'messages': this model takes images only with a single message of the role "
            "'user', because it applies its chat template itself.",
            param="messages",
        )
    parts = messages[0]["content"]
    return "\n".join(part["text"] for part in parts if part["type"] == "text")


# Kind -> what its items are called, and their parts in messages
_WORDS = {"image": ("images", "image_url"), "audio": ("audio files", "input_audio")}


@dataclass(frozen=True, slots=True)
class MediaPlaceholder:
    """The placeholder of one image, or one audio file, in a prompt."""

    kind: str
    text: str  # as the template writes it, with separators, such as "<image>\n"
    token_ids: Mapping[int, int]  # special token -> how often an item has it; may be empty
    pattern: re.Pattern[str]  # finds it in text; a number in it may vary

    def check(
        self, prompt: str | None, token_ids: Sequence[int] | None, items: int, param: str
    ) -> None:
        """Raise InvalidRequest unless the prompt has one placeholder for each item.

        Token ids are exact. A prompt that is only text may have others in what the client wrote.
        """
        if token_ids is not None and self.token_ids:
            found = [token_ids.count(id) / per for id, per in self.token_ids.items()]
        else:
            found = [len(self.pattern.findall(prompt or ""))]
        for count in found:
            if count != items:
                raise self._mismatch(count, items, param)

    def _mismatch(self, found: float, items: int, param: str) -> InvalidRequest:
        what, part = _WORDS[self.kind]
        placeholder = self.text.strip()
        counted = (
            f"the prompt has {found:g} {self.kind} placeholders ('{placeholder}') for {items} "
        )
        advice = f"Do not write placeholders: they are added for '{part}' parts."
        if found < items:
            advice = (
                f"The model's chat template drops {what} in messages of other roles than 'user', "
                "or the prompt was truncated."
            )
        return InvalidRequest(f"Invalid '{param}': {counted}{what}. {advice}", param=param)


def of_text(
    kind: str, text: str, *, added: Mapping[int, object], encode: Callable[[str], Sequence[int]]
) -> MediaPlaceholder:
    """The placeholder that a template or an engine writes as `text`. `added`: the tokenizer's added
    tokens by id; `encode`: without special tokens around the text.
    """
    pattern = re.compile(re.sub(r"\d+", r"\\d+", re.escape(text.strip())))
    ids = Counter(encode(text))
    # Tokens with a number are of one item each
    shared = {
        id: each for id, each in ids.items() if id in added and not _NUMBER.search(f"{added[id]}")
    }
    return MediaPlaceholder(kind, text, shared, pattern)
