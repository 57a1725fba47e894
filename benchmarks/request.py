"""What the benchmarks ask for: each kind of request as bytes. Pure."""

import functools
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks import picture
from benchmarks.response_reader import CHAT_END, MESSAGES_END, RESPONSES_END, StreamEnd

# The models of `mock_repository`
API_KEY = "none"  # in every request; most servers need no key
MODEL = "mock"
BY_FOUR_MODEL = "by_four"  # four tokens a step
PACED_MODEL = "paced"  # PACE_PER_S tokens a second for each stream
LONG_MODEL = "long"  # takes the longest prompts, with the demo model's tokenizer
EMBEDDING_MODEL = "embedding"
CALLS_MODEL = "calls"  # its answers are tool calls
REASONING_MODEL = "reasoning"  # its answers are reasoning
WAITING_MODEL = "waiting"  # its first token never comes while a benchmark runs

PACE_PER_S = 100.0
EMBEDDING_INPUTS = 16
EMBEDDING_DIMENSIONS = 4096

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "Tell me in a few sentences how a benchmark stays honest."},
]
_TEXT = (
    "a benchmark stays honest when what it measures is what a reader would meet so the client "
    "sends real requests and counts each answer and the server says how long every core worked "
)
_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0},
        "languages": {"type": "array", "items": {"type": "string"}},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            "required": ["street", "city"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "languages", "address"],
    "additionalProperties": False,
}
_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": name, "description": f"Finds {name}.", "parameters": _PERSON},
    }
    for name in ("find_person", "store_person")
]

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a kind of request makes its body of."""

    size: int = 0  # bytes; 0: the kind's own short prompt
    inputs: int = EMBEDDING_INPUTS  # of an embeddings request
    number: int = 0  # makes it different from those with another number


_USUAL = Prompt()


def messages(prompt_bytes: int) -> list[dict[str, Any]]:
    """The usual short chat, or for other than 0 one user message of so many bytes."""
    if not prompt_bytes:
        return MESSAGES
    return [{"role": "user", "content": text(prompt_bytes)}]


@functools.cache
def text(length: int) -> str:
    """Words in no order; the same each time."""
    words = _TEXT.split()
    chosen = random.Random(length).choices(words, k=length // min(map(len, words)) + 1)
    return " ".join(chosen)[:length]


def _chat(prompt: Prompt) -> Body:
    return {"messages": messages(prompt.size)}


def _question(prompt: Prompt) -> Body:
    """For a real engine: all answers have the requested length, and the usage tells it."""
    system, user = MESSAGES
    question = {**user, "content": f"Question {prompt.number}: {user['content']}"}
    return {
        "messages": [system, question],
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "temperature": 0,
    }


def _asked(**fields: Any) -> Callable[[Prompt], Body]:
    """A question with these fields besides."""

    def body(prompt: Prompt) -> Body:
        return {**_question(prompt), **fields}

    return body


def _long_question(prompt: Prompt) -> Body:
    """A long first message that no other request has, as a user pastes one."""
    message = f"Question {prompt.number}: {text(prompt.size)}"
    return {**_question(prompt), "messages": [{"role": "user", "content": message}]}


def _next_turn(prompt: Prompt) -> Body:
    """A question after a long conversation, which is the same in all requests."""
    user = {"role": "user", "content": text(prompt.size)}
    answered = [user, {"role": "assistant", "content": text(200)}]
    question = _question(prompt)
    return {**question, "messages": [*answered, question["messages"][-1]]}


def _shown(number: int, *sides: int) -> dict[str, Any]:
    """A message with images; those with the same number are known after the first time."""
    urls = [picture.data_url(side, number + at) for at, side in enumerate(sides)]
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"role": "user", "content": [*images, {"type": "text", "text": "Describe it."}]}


def _new_image(side: int) -> Callable[[Prompt], Body]:
    """An image that no other request has."""

    def body(prompt: Prompt) -> Body:
        return {**_question(prompt), "messages": [_shown(prompt.number, side)]}

    return body


def _known_image(prompt: Prompt) -> Body:
    """The same image in all requests."""
    return {**_question(prompt), "messages": [_shown(0, 1024)]}


def _image_turn(prompt: Prompt) -> Body:
    """The next turn of a conversation that has shown 30 images; all requests are the same."""
    turns = [
        message
        for turn in range(10)
        for message in (_shown(3 * turn, 1024, 1024, 1024), {"role": "assistant", "content": "Yes"})
    ]
    question = _question(prompt)
    return {**question, "messages": [*turns, question["messages"][-1]]}


def _completion(prompt: Prompt) -> Body:
    return {"prompt": text(prompt.size or 80)}


_SCHEMA: Body = {
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "person", "strict": True, "schema": _PERSON},
    }
}
_OFFERED: Body = {"tools": _TOOLS, "tool_choice": "auto"}
_LOGPROBS: Body = {"logprobs": True, "top_logprobs": 3}


def _json_schema(prompt: Prompt) -> Body:
    return {**_chat(prompt), **_SCHEMA}


def _tools(prompt: Prompt) -> Body:
    return {**_chat(prompt), **_OFFERED}


def _logprobs(prompt: Prompt) -> Body:
    return {**_chat(prompt), **_LOGPROBS}


def _responses(prompt: Prompt) -> Body:
    return {"input": messages(prompt.size), "store": False}


def _responses_tools(prompt: Prompt) -> Body:
    tools = [{"type": "function", **tool["function"]} for tool in _TOOLS]
    return {**_responses(prompt), "tools": tools}


def _messages(prompt: Prompt) -> Body:
    """The system message has a field of its own."""
    system, user = MESSAGES
    if prompt.size:
        return {"messages": messages(prompt.size)}
    return {"system": system["content"], "messages": [user]}


def _messages_tools(prompt: Prompt) -> Body:
    tools = [
        {
            "name": tool["function"]["name"],
            "description": tool["function"]["description"],
            "input_schema": _PERSON,
        }
        for tool in _TOOLS
    ]
    return {**_messages(prompt), "tools": tools}


def _asked_of_responses(prompt: Prompt) -> Body:
    question = _question(prompt)
    fields = {"temperature": 0, "ignore_eos": True, "store": False}
    return {"input": question["messages"], **fields}


def _asked_of_messages(prompt: Prompt) -> Body:
    system, user = _question(prompt)["messages"]
    fields = {"temperature": 0, "ignore_eos": True}
    return {"system": system["content"], "messages": [user], **fields}


def _embeddings(encoding_format: str) -> Callable[[Prompt], Body]:
    def body(prompt: Prompt) -> Body:
        first = prompt.number * prompt.inputs
        inputs = [f"{first + at}: {text(prompt.size or 80)}" for at in range(prompt.inputs)]
        return {"input": inputs, "encoding_format": encoding_format}

    return body


_CHAT, _COMPLETIONS, _EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
_RESPONSES, _MESSAGES = "/v1/responses", "/v1/messages"
_TEXT_FIELDS = {
    "calls": b"arguments",
    "reasoning": b"reasoning",
    "responses": b"delta",
    "responses_calls": b"delta",
    "messages": b"text",
    "messages_calls": b"partial_json",
    "question_responses": b"delta",
    "question_messages": b"text",
}
# Path -> how a stream ends, and what a whole answer has once; chats and completions if it is absent
_ENDS: Mapping[str, tuple[StreamEnd, bytes]] = {
    _RESPONSES: (RESPONSES_END, b'"output_tokens":'),
    _MESSAGES: (MESSAGES_END, b'"stop_reason":'),
}
_CHAT_ENDS = CHAT_END, b'"finish_reason":"'
_KINDS: Mapping[str, tuple[str, Callable[[Prompt], Body]]] = {
    "chat": (_CHAT, _chat),
    "question": (_CHAT, _question),
    "question_tools": (_CHAT, _asked(**_OFFERED)),
    "question_schema": (_CHAT, _asked(**_SCHEMA)),
    "question_logprobs": (_CHAT, _asked(**_LOGPROBS)),
    "question_long": (_CHAT, _long_question),
    "question_turn": (_CHAT, _next_turn),
    "question_responses": (_RESPONSES, _asked_of_responses),
    "question_messages": (_MESSAGES, _asked_of_messages),
    "image_512": (_CHAT, _new_image(512)),
    "image_1024": (_CHAT, _new_image(1024)),
    "image_known": (_CHAT, _known_image),
    "image_turn": (_CHAT, _image_turn),
    "completion": (_COMPLETIONS, _completion),
    "json_schema": (_CHAT, _json_schema),
    "tools": (_CHAT, _tools),
    "calls": (_CHAT, _tools),
    "reasoning": (_CHAT, _chat),
    "logprobs": (_CHAT, _logprobs),
    "responses": (_RESPONSES, _responses),
    "responses_calls": (_RESPONSES, _responses_tools),
    "messages": (_MESSAGES, _messages),
    "messages_calls": (_MESSAGES, _messages_tools),
    "embeddings_float": (_EMBEDDINGS, _embeddings("float")),
    "embeddings_base64": (_EMBEDDINGS, _embeddings("base64")),
}


@functools.lru_cache(maxsize=4096)  # one for each length of an answer
def request(
    kind: str,
    model: str,
    *,
    stream: bool,
    tokens: int,
    prompt: Prompt = _USUAL,
) -> bytes:
    """The whole request; `tokens` is the size of the answer where the kind has one."""
    path, body = _KINDS[kind]
    limit = "max_output_tokens" if path == _RESPONSES else "max_tokens"
    generated = {} if path == _EMBEDDINGS else {"stream": stream, limit: tokens}
    fields = {"model": model, **body(prompt), **generated}
    if not stream:
        fields.pop("stream_options", None)
    return post(path, fields)


def post(path: str, body: Mapping[str, Any]) -> bytes:
    """A request's bytes."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {API_KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def embeds(kind: str) -> bool:
    """Its answer holds vectors, not text."""
    return _KINDS[kind][0] == _EMBEDDINGS


def asks_usage(kind: str) -> bool:
    """A stream of it ends with the usage."""
    return kind.startswith("question") or _KINDS[kind][0] in _ENDS


def stream_end(kind: str) -> StreamEnd:
    """How a stream of it ends."""
    return _ENDS.get(_KINDS[kind][0], _CHAT_ENDS)[0]


def whole_ending(kind: str) -> bytes:
    """What a whole answer to it has once."""
    return _ENDS.get(_KINDS[kind][0], _CHAT_ENDS)[1]


def text_field(kind: str) -> bytes:
    """The member of a streamed chunk that holds the text."""
    if kind in _TEXT_FIELDS:
        return _TEXT_FIELDS[kind]
    return b"text" if _KINDS[kind][0] == _COMPLETIONS else b"content"
