"""Leaves the assistant's last message open, so that the model continues it.

Templates close every turn. So a mark is added where the message's text ends, and the rendered
prompt is cut there. If a template trims contents, the space before the mark is cut too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from openai_frontend.errors import InvalidRequest

Message = dict[str, Any]

_WORD = "left-open-5e1c"
_MARK = _WORD + " "  # the space shows whether the template trims


def mark_last_message(messages: Sequence[Message]) -> list[Message]:
    """The messages, with the mark after the text of the last one."""
    if not messages or not isinstance(_final_text(messages[-1]), str):
        message = "The last message has no text to continue."
        raise InvalidRequest(message, param="continue_final_message")
    *before, last = messages
    content = last["content"]
    if isinstance(content, str):
        return [*before, {**last, "content": content + _MARK}]
    at = _last_text_part(content)
    marked = {**content[at], "text": content[at]["text"] + _MARK}
    return [*before, {**last, "content": [*content[:at], marked, *content[at + 1 :]]}]


def cut_at_mark(rendered: str, last: Message) -> str:
    """The prompt up to the end of the last message's text. `last` is without the mark."""
    at = rendered.rfind(_WORD)
    if at < 0 or (_final_text(last) or "").strip() not in rendered:
        message = "The model's chat template drops the last message, so it cannot be continued."
        raise InvalidRequest(message, param="continue_final_message")
    return rendered[:at] if rendered.startswith(_MARK, at) else rendered[:at].rstrip()


def _final_text(message: Mapping[str, Any]) -> str | None:
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content
    at = _last_text_part(content)
    return None if at < 0 else str(content[at]["text"])


def _last_text_part(parts: Sequence[Mapping[str, Any]]) -> int:
    """Its index; -1 if there is none."""
    return max((i for i, part in enumerate(parts) if "text" in part), default=-1)
