"""The guarantees of a stream of /v1/responses, as a state machine that is fed event by event.

The order is OpenAI's; its SDK, Codex and the AI SDK each fail if another part of it is broken. The
events are also folded as those clients do: the last one must have the same items.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from tests.stream_rules import rule

Event = Mapping[str, Any]

# OpenAI's schema requires all of them
MEMBERS = frozenset(
    {
        "id", "object", "created_at", "completed_at", "status", "incomplete_details", "model",
        "previous_response_id", "instructions", "output", "error", "tools", "tool_choice",
        "truncation", "parallel_tool_calls", "text", "top_p", "presence_penalty",
        "frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage",
        "max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata",
        "safety_identifier", "prompt_cache_key",
    }
)  # fmt: skip
_ENDS = ("response.completed", "response.incomplete", "response.failed")
# The event of a piece -> the member of the item that it adds to; None: a part has its text
_PIECES: Mapping[str, str | None] = {
    "response.output_text.delta": None,
    "response.reasoning_text.delta": None,
    "response.reasoning_summary_text.delta": None,
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
}


def check_response(response: Event, status: str | None = None) -> None:
    """The whole object, as an answer or within an event."""
    rule(response.keys() >= MEMBERS, f"a response lacks {MEMBERS - response.keys()}")
    rule(status is None or response["status"] == status, f"the status is {response['status']}")
    for name in ("top_p", "temperature", "presence_penalty", "frequency_penalty", "top_logprobs"):
        rule(isinstance(response[name], int | float), f"{name} is a number")
    rule(isinstance(response["store"], bool), "store is a boolean")
    incomplete = response["status"] == "incomplete"
    rule(incomplete == (response["incomplete_details"] is not None), "a reason comes with it")
    for item in response["output"]:
        rule(item["id"].startswith(_PREFIX[item["type"]]), f"the id of {item['type']}")
        rule(item["status"] in ("completed", "incomplete"), "an item in the output is done")


_PREFIX = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "custom_tool_call": "ctc_",
    "tool_search_call": "tsc_",
}


class ResponseRules:
    """Feed the data of each event, then `finish`."""

    def __init__(self) -> None:
        self.pieces = 0  # events with a piece of text
        self.output: list[Event] = []
        self._numbers = 0
        self._id: str | None = None
        self._open: dict[str, Any] | None = None
        self._texts: list[str] = []
        self._parts = 0  # that are open
        self._ended = self._done = False

    def feed(self, name: str, data: bytes) -> None:
        """Feeds one event, or `[DONE]`."""
        rule(not self._done, "nothing follows [DONE]")
        if data == b"[DONE]":
            rule(self._ended, "[DONE] follows the last response")
            self._done = True
            return
        event = orjson.loads(data)
        rule(event["type"] == name, "the event's line and its data name the same type")
        rule(event["sequence_number"] == self._numbers, "events are numbered without gaps")
        rule(not self._ended, "nothing but [DONE] follows the end")
        self._numbers += 1
        if "response" in event:
            self._state(name, event["response"])
        elif name == "error":
            rule(bool(event["message"]) and bool(event["error"]["message"]), "both forms")
        else:
            rule(self._numbers > 2, "created and in_progress come first")
            self._item_event(name, event)

    def _state(self, name: str, response: Event) -> None:
        if self._id is None:
            rule(name == "response.created", "the first event is response.created")
            self._id = response["id"]
        rule(response["id"] == self._id, "the id never changes")
        rule(self._numbers != 2 or name == "response.in_progress", "then in_progress")
        if name not in _ENDS:
            check_response(response, "in_progress")
            return
        check_response(response, name.removeprefix("response."))
        rule(name == "response.failed" or self._open is None, "every item is done at the end")
        rule(list(response["output"]) == self.output, "the output equals the items that are done")
        rule((response["usage"] is None) == (name == "response.failed"), "the usage is whole")
        self._ended = True

    def _item_event(self, name: str, event: Event) -> None:
        rule(event["output_index"] == len(self.output), "items have rising indexes")
        if name == "response.output_item.added":
            rule(self._open is None, "one item after the other")
            self._open = event["item"]
            rule(self._open["status"] == "in_progress", "an item begins in progress")
            self._texts = []
            return
        rule(self._open is not None, f"{name} without an item")
        assert self._open is not None
        if name == "response.output_item.done":
            self._item_done(event["item"])
            return
        rule(event["item_id"] == self._open["id"], "the event names the open item")
        if name.endswith("part.added"):
            self._parts += 1
        elif name.endswith("part.done"):
            self._parts -= 1
            rule(event["part"]["text"] == "".join(self._texts), "the part is the sum of its pieces")
        elif name in _PIECES:
            rule(self._parts == (_PIECES[name] is None), "text pieces belong to a part")
            rule(bool(event["delta"]), "no piece is empty")
            rule("logprobs" in event or "output_text" not in name, "text has a list of logprobs")
            self.pieces += 1
            self._texts.append(event["delta"])
        else:
            whole = event.get("text", event.get("arguments", event.get("input")))
            rule(whole == "".join(self._texts), f"{name} has the sum of the pieces")

    def _item_done(self, item: Event) -> None:
        assert self._open is not None
        for name in ("id", "type", "call_id", "name"):
            rule(item.get(name) == self._open.get(name), f"{name} stays the same")
        rule(item["status"] in ("completed", "incomplete"), "a done item has its status")
        for name in ("arguments", "input"):
            if isinstance(item.get(name), str):
                rule(item[name] == "".join(self._texts), f"{name} is the sum of the pieces")
        self.output.append(item)
        self._open = None

    def finish(self) -> None:
        """The stream has ended."""
        rule(self._done, "a stream ends with [DONE]")


def read_stream(stream: bytes) -> ResponseRules:
    """Checks a whole stream."""
    rules = ResponseRules()
    for frame in stream.split(b"\n\n"):
        if frame and not frame.startswith(b":"):
            rules.feed(*named(frame))
    rules.finish()
    return rules


def named(frame: bytes) -> tuple[str, bytes]:
    """The name of an event, and its data. `[DONE]` has no name."""
    if frame == b"data: [DONE]":
        return "", b"[DONE]"
    first, _, second = frame.partition(b"\n")
    rule(first.startswith(b"event: ") and second.startswith(b"data: "), f"two lines: {frame!r}")
    rule(b"\n" not in second, "one line of data")
    return first.removeprefix(b"event: ").decode(), second.removeprefix(b"data: ")
