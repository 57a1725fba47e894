"""The messages of a request in the words of chat templates.

Adjacent messages of one role are one turn, as in Anthropic's API. Histories move between providers,
so a block that only another server can read becomes a short note, or nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.dialects.messages.blocks_in import IMAGE, BlockReader, note
from openai_frontend.serving.request.media_parts import MediaPart
from openai_frontend.serving.request.sealed_text import UNENCRYPTED, TextSeal, Unsealer
from openai_frontend.serving.request.template_inputs import AssistantTurn, for_templates

Block = Mapping[str, Any]
Part = Mapping[str, Any]

# Claude Code's first system block, which differs by session and would change every prefix
_BILLING = "x-anthropic-billing-header"


@dataclass(slots=True)
class History:
    """The messages, their media, and the text of the last one if the output continues it."""

    messages: Sequence[Mapping[str, Any]]
    media: Sequence[MediaPart]
    continued: str | None = None


def read_history(
    messages: Sequence[Mapping[str, Any]],
    system: str | Sequence[Block] | None,
    seal: TextSeal = UNENCRYPTED,
    definitions: Mapping[str, str] = MappingProxyType({}),
) -> History:
    """`seal` is the caller's, `definitions` are of deferred tools by name. Raises InvalidRequest
    for content that no model could read.
    """
    reader = _HistoryReader(Unsealer(seal), BlockReader(definitions))
    blocks = [{"type": "text", "text": system}] if isinstance(system, str) else system or ()
    kept = [each for each in blocks if not each["text"].startswith(_BILLING)]
    if any(each["text"] for each in kept):
        reader.say("system", kept)
    for at, message in enumerate(messages):
        reader.read(message, f"messages[{at}].content")
    return reader.result()


class _HistoryReader:
    """Gathers the turns."""

    def __init__(self, unsealer: Unsealer, blocks: BlockReader) -> None:
        self._blocks = blocks
        self._unsealer = unsealer
        self._messages: list[Mapping[str, Any]] = []
        self._turn: AssistantTurn | None = None
        self._role = ""  # of the parts
        self._parts: list[Part] = []  # of another role's turn
        self._tools: dict[str, str] = {}  # the id of a call -> its tool

    def result(self) -> History:
        continued = None
        if self._turn is not None and not self._turn.calls:
            continued = self._turn.text or None
            if continued is None:  # an empty turn, which the output begins
                self._turn = None
        self._end_turns()
        return History(for_templates(self._messages), self._blocks.media, continued)

    def read(self, message: Mapping[str, Any], place: str) -> None:
        content = message["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if message["role"] == "assistant":
            self._assistant(content)
            return
        if not content:
            expected = "Expected an array with minimum length 1, but got an empty array instead."
            text = f"Invalid '{place}': empty array. {expected}"
            raise InvalidRequest(text, param=place, code="empty_array")
        self._results(content, place)
        self.say(message["role"], content, place)

    def _results(self, content: Sequence[Block], place: str) -> None:
        """The results of calls, which come first. Their images follow as the user's, because
        templates take only text from tools.
        """
        images: list[Part] = []
        for at, block in enumerate(content):
            if block["type"] != "tool_result":
                continue
            parts = self._blocks.result(block, f"{place}[{at}]")
            images += [part for part in parts if part is IMAGE]
            text = "\n".join("[image]" if part is IMAGE else part["text"] for part in parts)
            if block.get("is_error"):
                text = f"Error: {text}"
            id = block["tool_use_id"]
            result = {"role": "tool", "tool_call_id": id, "content": text}
            self._end_turns()
            self._messages.append(
                {**result, "name": self._tools[id]} if id in self._tools else result
            )
        if images:
            self._add("user", images)

    def say(self, role: str, content: Iterable[Block], place: str = "system") -> None:
        """Blocks of any role but the assistant's, other than results."""
        for at, block in enumerate(content):
            if block["type"] != "tool_result":
                self._add(role, self._blocks.parts(block, f"{place}[{at}]"))

    def _add(self, role: str, parts: Sequence[Part]) -> None:
        if self._turn is not None or role != self._role:
            self._end_turns()
            self._role = role
        self._parts += parts

    def _assistant(self, content: Sequence[Block]) -> None:
        if self._turn is None:
            self._end_turns()
            self._turn = AssistantTurn()
        turn = self._turn
        if turn.texts:
            turn.texts.append("\n")
        for block in content:
            match block["type"]:
                case "text":
                    turn.texts.append(block["text"])
                case "thinking":
                    thought = block["thinking"] or self._unsealer.read(block.get("signature"))
                    if thought:
                        turn.reasoning.append(thought)
                case "redacted_thinking":
                    pass
                case "tool_use":
                    turn.calls.append(self._call(block))
                case _:
                    turn.texts.append(note(block))

    def _call(self, block: Block) -> Mapping[str, Any]:
        self._tools[block["id"]] = block["name"]
        function = {"name": block["name"], "arguments": block["input"]}
        return {"id": block["id"], "type": "function", "function": function}

    def _end_turns(self) -> None:
        if self._turn is not None:
            self._messages.append(self._turn.message())
            self._turn = None
        if self._parts:
            self._messages.append({"role": self._role, "content": _content(self._parts)})
            self._parts = []
        self._role = ""


def _content(parts: Sequence[Part]) -> Any:
    """A text, or parts if there are images; adjacent texts are one."""
    if not any(part is IMAGE for part in parts):
        return "\n".join(part["text"] for part in parts)
    joined: list[Part] = []
    for part in parts:
        if part is not IMAGE and joined and joined[-1] is not IMAGE:
            joined[-1] = {"type": "text", "text": f"{joined[-1]['text']}\n{part['text']}"}
        else:
            joined.append(part)
    return joined
