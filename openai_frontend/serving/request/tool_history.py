"""Earlier answers and what tools answered them, in the words that published chat templates know.

Templates know function calls, tool results and one name or another for reasoning. OpenAI's messages
may also hold calls of custom tools and, from before there were tools, `function_call` and the role
`function`. What a template wants of arguments and empty contents: prompting/chat_template.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

Message = Mapping[str, Any]

_SPECIAL = ("tool_calls", "function_call", "reasoning_content", "reasoning")


def for_templates(messages: Sequence[Message]) -> list[Message]:
    """The messages; those that every template knows are the same objects."""
    ids: dict[str, str] = {}  # function -> the id that its last call has got
    return [_told(message, i, ids) for i, message in enumerate(messages)]


def _told(message: Message, index: int, ids: dict[str, str]) -> Message:
    if message["role"] == "function":
        return _result(message, index, ids)
    if message["role"] == "assistant" and any(message.get(name) for name in _SPECIAL):
        return _answer(dict(message), index, ids)
    return message


def _new_id(index: int) -> str:
    """Nine letters and digits: Mistral's templates take no other ids."""
    return f"call{index:05d}"


def _result(message: Message, index: int, ids: Mapping[str, str]) -> Message:
    """A function's result as a tool's, of the function's last call."""
    id = ids.get(message.get("name") or "") or _new_id(index)
    return {**message, "role": "tool", "tool_call_id": id}


def _answer(message: dict[str, Any], index: int, ids: dict[str, str]) -> Message:
    function = message.pop("function_call", None)
    if function:
        ids[function["name"]] = id = _new_id(index)
        call = {"id": id, "type": "function", "function": function}
        message["tool_calls"] = [*(message.get("tool_calls") or ()), call]
    elif message.get("tool_calls"):
        message["tool_calls"] = [_function_call(call) for call in message["tool_calls"]]
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if reasoning:
        message["reasoning_content"] = message["reasoning"] = reasoning
        if message.get("tool_calls") and not message.get("content"):
            # gpt-oss's name for it; its template refuses it beside a content
            message["thinking"] = reasoning
    return message


def _function_call(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """A custom tool's call as that of the function of one text that the model was shown."""
    if call["type"] == "function":
        return call
    custom = call["custom"]
    arguments = orjson.dumps({"input": custom["input"]}).decode()
    function = {"name": custom["name"], "arguments": arguments}
    return {"id": call["id"], "type": "function", "function": function}
