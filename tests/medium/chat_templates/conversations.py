"""Chats as clients send them, and the same chats in the form that `transformers` expects."""

from typing import Any

Messages = list[dict[str, Any]]

SYSTEM = {"role": "system", "content": "Be brief."}
HI = {"role": "user", "content": "Hi"}
HELLO = {"role": "assistant", "content": "Hello!"}
BYE = {"role": "user", "content": "Bye"}
GOLDEN: Messages = [SYSTEM, HI, HELLO, BYE]

UNICODE = "  Grüße \U0001f468‍\U0001f469‍\U0001f467, 漢字, e\u0301 <b>&amp;</b> {{ x }}\n\n"
PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]

# name -> (as sent, as passed to `transformers`)
PLAIN: dict[str, tuple[Messages, Messages]] = {
    "one question": ([HI], [HI]),
    "system": ([SYSTEM, HI], [SYSTEM, HI]),
    "developer": ([{**SYSTEM, "role": "developer"}, HI], [SYSTEM, HI]),
    "several turns": (GOLDEN, GOLDEN),
    "unicode": ([{"role": "user", "content": UNICODE}], [{"role": "user", "content": UNICODE}]),
    "parts": ([{"role": "user", "content": PARTS}], [{"role": "user", "content": "one\ntwo"}]),
}

# answers that the model continues
OPEN: dict[str, Messages] = {
    "prefill": [HI, {"role": "assistant", "content": "Hel"}],
    "after a system": [SYSTEM, HI, {"role": "assistant", "content": "Hel"}],
    "ends with a space": [HI, {"role": "assistant", "content": "1, 2, "}],
    "ends with lines": [HI, {"role": "assistant", "content": "```\n\n"}],
    "empty": [HI, {"role": "assistant", "content": ""}],
}

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Über <das> Wetter",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def called(arguments: object) -> Messages:
    """A chat with a tool call and its result."""
    function = {"name": "weather", "arguments": arguments}
    call = {"id": "call00001", "type": "function", "function": function}
    return [
        SYSTEM,
        HI,
        {"role": "assistant", "content": "Wait.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call00001", "content": "sunny"},
    ]
