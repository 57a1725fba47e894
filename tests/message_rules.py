"""The guarantees of a stream of Anthropic's events, as a state machine that is fed event by event.

A message begins; blocks, numbered from 0, begin, continue and end one after the other; the message
ends. Or an error comes, with nothing after it. Raises OutOfOrder at the first broken rule.
"""

import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from tests.response_rules import named
from tests.stream_rules import rule

# Type of a block -> that of its deltas
_DELTAS = {
    "text": "text_delta",
    "thinking": "thinking_delta",
    "tool_use": "input_json_delta",
}
_EMPTY = {
    "text": {"text": "", "citations": None},
    "thinking": {"thinking": "", "signature": ""},
}
_COUNTS = {
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
    "output_tokens_details",
}
_REASONS = {
    "end_turn",
    "stop_sequence",
    "tool_use",
    "max_tokens",
    "model_context_window_exceeded",
}


def _prompt_tokens(usage: Mapping[str, Any]) -> int:
    return int(usage["input_tokens"] + usage["cache_read_input_tokens"])


class MessageRules:
    """The machine: `feed` each event's name and data, `finish` when the connection ended."""

    def __init__(self) -> None:
        self.ended: str | None = None  # by what
        self._prompt_tokens = 0
        self._begun = False
        self._index = -1
        self._open: str | None = None  # the type of the open block
        self._json = ""  # the arguments of the open call
        self._unfinished = True  # the last call, or there is none
        self._signed = False
        self._kinds: list[str] = []
        self._stop_reason: str | None = None

    def feed(self, name: str, data: bytes) -> None:
        """Feeds one event."""
        event = json.loads(data)
        rule(event["type"] == name, f"the event {name} says that it is {event['type']}")
        rule(self.ended is None, f"{name} follows {self.ended}")
        if name == "error":
            rule(event["error"].keys() == {"type", "message"}, "an error has other members")
            self.ended = name
            return
        if name != "message_start":
            rule(self._begun, f"{name} comes before message_start")
        getattr(self, f"_{name}")(event)

    def finish(self) -> None:
        """Call it at the end of the connection."""
        rule(self.ended is not None, "the stream ends in silence: no message_stop, no error")

    def _ping(self, event: Mapping[str, Any]) -> None:
        rule(event.keys() == {"type"}, "a ping says more")

    def _message_start(self, event: Mapping[str, Any]) -> None:
        rule(not self._begun, "the message begins again")
        message = event["message"]
        rule(message["content"] == [], "a message begins with content")
        rule(message["stop_reason"] is None, "a message begins with its end")
        rule(message["usage"].keys() >= _COUNTS, "a count is missing at the beginning")
        self._prompt_tokens = _prompt_tokens(message["usage"])
        self._cached_tokens = message["usage"]["cache_read_input_tokens"]
        self._begun = True

    def _content_block_start(self, event: Mapping[str, Any]) -> None:
        rule(self._open is None, "a block begins within another")
        rule(event["index"] == self._index + 1, "blocks are not numbered from 0 on")
        self._index = event["index"]
        block = dict(event["content_block"])
        self._open = block.pop("type")
        if self._open == "tool_use":
            rule(block["input"] == {}, "a call begins with arguments")
            rule(block["id"].startswith("toolu_") and bool(block["name"]), "a call has no name")
        else:
            rule(block == _EMPTY[self._open], "a block begins with content")
        text_again = self._open != "tool_use" and self._kinds[-1:] == [self._open]
        rule(not text_again, "two adjacent blocks could be one")
        self._kinds.append(self._open)
        self._json, self._signed = "", False

    def _content_block_delta(self, event: Mapping[str, Any]) -> None:
        rule(self._open is not None, "a delta outside of a block")
        rule(event["index"] == self._index, "a delta of another block")
        rule(not self._signed, "a delta follows the signature")
        delta = event["delta"]
        if delta["type"] == "signature_delta":
            rule(self._open == "thinking" and bool(delta["signature"]), "a signature of nothing")
            self._signed = True
            return
        rule(delta["type"] == _DELTAS[str(self._open)], f"a {delta['type']} in a {self._open}")
        if self._open == "tool_use":
            self._json += delta["partial_json"]

    def _content_block_stop(self, event: Mapping[str, Any]) -> None:
        rule(self._open is not None and event["index"] == self._index, "another block ends")
        rule(self._open != "thinking" or self._signed, "reasoning ends without a signature")
        if self._open == "tool_use":
            self._unfinished = not is_object(self._json)
        self._open = None

    def _message_delta(self, event: Mapping[str, Any]) -> None:
        rule(self._stop_reason is None, "the message ends twice")
        rule(self._open is None and self._index >= 0, "the message ends without its blocks")
        reason = event["delta"]["stop_reason"]
        rule(reason in _REASONS, f"the unknown reason {reason}")
        called = "tool_use" in self._kinds
        if reason == "tool_use":
            rule(called and not self._unfinished, "tool_use without a complete call")
        if reason == "end_turn":
            rule(not called or not self._unfinished, "the message ends well within a call")
        sequence = event["delta"]["stop_sequence"]
        rule((sequence is not None) == (reason == "stop_sequence"), "a stop sequence or none")
        usage = event["usage"]
        rule(usage.keys() >= _COUNTS, "a count is missing at the end")
        rule(_prompt_tokens(usage) >= self._prompt_tokens, "the prompt has become shorter")
        cached = usage["cache_read_input_tokens"]
        rule(self._cached_tokens in (0, cached), "the message begins with other cached tokens")
        self._stop_reason = reason

    def _message_stop(self, event: Mapping[str, Any]) -> None:
        rule(self._stop_reason is not None, "the message stops without a reason")
        self.ended = "message_stop"


def is_object(arguments: str) -> bool:
    """Whether the arguments of a call are complete."""
    try:
        return isinstance(json.loads(arguments or "{}"), dict)
    except ValueError:
        return False


def check_stream(stream: bytes) -> list[dict[str, Any]]:
    """The events of a whole stream. Raises OutOfOrder."""
    rules, events = MessageRules(), []
    for frame in stream.split(b"\n\n")[:-1]:
        if frame.startswith(b":"):
            continue
        name, data = named(frame)
        rules.feed(name, data)
        events.append(json.loads(data))
    rules.finish()
    return events


def folded(stream: bytes) -> dict[str, Any]:
    """The message as clients add it up."""
    message: dict[str, Any] = {}
    for event in check_stream(stream):
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                message["content"].append(event["content_block"] | {"json": ""})
            case "content_block_delta":
                block, delta = message["content"][-1], event["delta"]
                for name in ("text", "thinking", "signature"):
                    block[name] = block.get(name, "") + delta.get(name, "")
                block["json"] += delta.get("partial_json", "")
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
    message["content"] = [_block(each) for each in message["content"]]
    return message


def _arguments(text: str) -> Any:
    """A model without a grammar may write anything."""
    try:
        arguments = from_json(text or "{}", allow_partial=True)
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


def _block(block: dict[str, Any]) -> dict[str, Any]:
    if block["type"] == "tool_use":
        return {"type": "tool_use", "name": block["name"], "input": _arguments(block["json"])}
    return {name: block[name] for name in ("type", block["type"])}
