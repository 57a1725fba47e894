"""What a chat template writes for an image, and how often a prompt contains it.

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
from openai_frontend.prompting.tokenizer import Tokenizer

Message = Mapping[str, Any]

_TEXT = {"type": "text", "text": "probe-2c9e"}
_IMAGE = {"type": "image"}
_PRINTED = re.compile("[\"']type[\"']")  # a template that prints the parts as they are


def probe(render: Callable[[Message], str | None]) -> str:
    """What a template adds to a user's message for one more image; "" if it ignores images.

    `render` returns None if the template rejects the message.
    """
    none, one, two = (
        render({"role": "user", "content": [*[_IMAGE] * images, _TEXT]}) for images in range(3)
    )
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


@dataclass(frozen=True, slots=True)
class ImagePlaceholder:
    """What stands for one image in a prompt."""

    text: str  # as the template writes it, with separators, such as "<image>\n"
    token_ids: Mapping[int, int]  # special token -> how often an image has it; may be empty
    pattern: re.Pattern[str]  # finds it in text; a number in it may vary

    def check(self, prompt: str | None, token_ids: Sequence[int] | None, images: int) -> None:
        """Raise InvalidRequest unless the prompt has one placeholder for each image.

        Token ids are exact. A prompt that is only text may have others in what the client wrote.
        """
        if token_ids is not None and self.token_ids:
            right = all(token_ids.count(id) == per * images for id, per in self.token_ids.items())
        else:
            right = len(self.pattern.findall(prompt or "")) == images
        if not right:
            raise InvalidRequest(
                f"The prompt has not one image placeholder ('{self.text.strip()}') for each of its "
                f"{images} images. Do not write placeholders, send images only in messages of "
                "roles whose images the chat template renders, and do not truncate such a prompt.",
                param="messages",
            )


def of_text(text: str, tokenizer: Tokenizer) -> ImagePlaceholder:
    """The placeholder that a template or an engine writes as `text`."""
    added = tokenizer.fast.get_added_tokens_decoder()
    ids = Counter(tokenizer.encode(text, add_special_tokens=False).ids)
    pattern = re.sub(r"\d+", r"\\d+", re.escape(text.strip()))
    return ImagePlaceholder(
        text, {id: count for id, count in ids.items() if id in added}, re.compile(pattern)
    )
