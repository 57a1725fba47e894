"""The requests whose answers are recorded: every endpoint, whole and streamed, errors included."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests import audio, images

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
MESSAGES = [{"role": "user", "content": "hi"}]
_JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Request:
    name: str
    path: str
    method: str = "POST"
    content: bytes = b""
    headers: Mapping[str, str] | None = None


def _post(name: str, path: str, **fields: Any) -> Request:
    return Request(name, path, content=json.dumps(fields).encode(), headers=_JSON)


def _both(name: str, path: str, **fields: Any) -> Iterator[Request]:
    """Whole and streamed."""
    yield _post(name, path, **fields)
    yield _post(f"{name}, streamed", path, **fields, stream=True)


_PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": _PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]
_CUSTOM = {"type": "custom", "custom": {"name": "code"}}
_SCHEMA = {"name": "x", "schema": _PARAMETERS, "strict": True}
_IMAGE = {"type": "image_url", "image_url": {"url": images.data_url(images.png(4, 4))}}

# Name -> fields of a chat and of a completion
SHARED: Mapping[str, Mapping[str, Any]] = {
    "nothing else": {},
    "two choices": {"n": 2},
    "a limit of two tokens": {"max_tokens": 2},
    "a limit of no token": {"max_tokens": 0},
    "a stop string": {"stop": " two"},
    "stop strings": {"stop": ["x", "thr"]},
    "a stop string in the answer": {"stop": " two", "include_stop_str_in_output": True},
    "token ids": {"return_token_ids": True},
    "sampling": {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "seed": 7},
    "penalties": {"presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.1},
    "a bias": {"logit_bias": {"5": 10}},
    "a user": {"user": "someone", "priority": 3, "cache_salt": "a salt"},
    "ignore the end": {"ignore_eos": True, "min_tokens": 2, "max_tokens": 7},
    "a JSON object": {"response_format": {"type": "json_object"}},
    "a JSON schema": {"response_format": {"type": "json_schema", "json_schema": _SCHEMA}},
    "a regex": {"structured_outputs": {"regex": "[a-z]+"}},
    "a choice": {"structured_outputs": {"choice": ["a", "b"]}},
    "prompt log probabilities": {"prompt_logprobs": 1},
    "truncation": {"truncate_prompt_tokens": 1},
}
STREAM_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "usage at the end": {"stream_options": {"include_usage": True}},
    "usage in every chunk": {
        "stream_options": {"include_usage": True, "continuous_usage_stats": True}
    },
    "no obfuscation": {"stream_options": {"include_obfuscation": False}},
    "an interval": {"stream_interval": 2},
}
# Name -> fields that are refused
REFUSED: Mapping[str, Mapping[str, Any]] = {
    "an unknown field": {"banana": 1},
    "a model that is unknown": {"model": "nobody"},
    "a model that did not load": {"model": "broken"},
    "a model of another kind": {"model": "embeds"},
    "a negative limit": {"max_tokens": -1},
    "a limit beyond the context": {"max_tokens": 100_000},
    "a temperature that is too high": {"temperature": 3},
    "a temperature of text": {"temperature": "hot"},
    "no choice": {"n": 0},
    "too many choices": {"n": 1000},
    "a stop list of numbers": {"stop": [1]},
    "five stop strings": {"stop": list("abcde")},
    "options without a stream": {"stream_options": {"include_usage": True}},
    "a bias of an unknown token": {"logit_bias": {"99999999": 1}},
    "a bias of text": {"logit_bias": {"a": 1}},
    "an unknown format": {"response_format": {"type": "poem"}},
    "a schema that is no schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": 5}}
    },
    "an invalid regex": {"structured_outputs": {"regex": "("}},
    "two constraints": {"structured_outputs": {"regex": "a", "choice": ["a"]}},
    "beams": {"use_beam_search": True, "n": 2, "temperature": 0},
    "a seed that is too large": {"seed": 2**65},
    "a model of a number": {"model": 5},
    "an adapter that is unknown": {"model": "talks:style"},
}
# Name -> fields of a chat
CHATS: Mapping[str, Mapping[str, Any]] = {
    "log probabilities": {"logprobs": True},
    "log probabilities of two tokens": {"logprobs": True, "top_logprobs": 2},
    "a limit of completion tokens": {"max_completion_tokens": 3},
    "parts of text": {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
    "a conversation": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            *MESSAGES,
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "Again"},
        ]
    },
    "a developer": {"messages": [{"role": "developer", "content": "Be brief."}, *MESSAGES]},
    "an answer to continue": {
        "messages": [*MESSAGES, {"role": "assistant", "content": "He"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    "echo": {"echo": True},
    "metadata": {"metadata": {"a": "b"}, "store": False, "service_tier": "auto"},
    "no reasoning": {"reasoning_effort": "none"},
    "arguments of the template": {"chat_template_kwargs": {"enable_thinking": False}},
}
CALLS: Mapping[str, Mapping[str, Any]] = {
    "tools": {},
    "no parallel calls": {"parallel_tool_calls": False},
    "no call": {"tool_choice": "none"},
    "a required call": {"tool_choice": "required"},
    "a named call": {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
    "two choices": {"n": 2},
    "log probabilities": {"logprobs": True},
}
REFUSED_CHATS: Mapping[str, Mapping[str, Any]] = {
    "no messages": {"messages": []},
    "messages of text": {"messages": "hi"},
    "an unknown role": {"messages": [{"role": "poet", "content": "hi"}]},
    "no content": {"messages": [{"role": "user"}]},
    "a part of an unknown type": {"messages": [{"role": "user", "content": [{"type": "smell"}]}]},
    "an image for a model of text": {"messages": [{"role": "user", "content": [_IMAGE]}]},
    "an answer to no call": {"messages": [{"role": "tool", "content": "1", "tool_call_id": "a"}]},
    "log probabilities of tokens alone": {"top_logprobs": 2},
    "too many log probabilities": {"logprobs": True, "top_logprobs": 50},
    "a choice without tools": {"tool_choice": "required"},
    "a tool that is unknown": {
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "fly"}},
    },
    "a tool without a name": {"tools": [{"type": "function", "function": {}}]},
    "two tools of one name": {"tools": [TOOLS[1], TOOLS[1]]},
    "audio as an answer": {"modalities": ["audio"], "audio": {"voice": "a", "format": "wav"}},
    "a search": {"web_search_options": {}},
}
PROMPTS: Mapping[str, Mapping[str, Any]] = {
    "several prompts": {"prompt": ["a", "b c"]},
    "token ids as a prompt": {"prompt": [1, 2, 3]},
    "several prompts of token ids": {"prompt": [[1], [2, 3]]},
    "an echo": {"prompt": "a b", "echo": True},
    "an echo alone": {"prompt": "a b", "echo": True, "max_tokens": 0},
    "log probabilities": {"prompt": "a", "logprobs": 1},
    "log probabilities with an echo": {"prompt": "a b", "logprobs": 1, "echo": True},
    "a suffix": {"prompt": "a", "suffix": "b"},
    "the best of two": {"prompt": "a", "best_of": 2},
    "an empty prompt": {"prompt": ""},
    "no prompt": {"prompt": []},
    "token ids out of range": {"prompt": [2**31]},
}
VECTORS: Mapping[str, Mapping[str, Any]] = {
    "a text": {"input": "hi"},
    "texts": {"input": ["hi", "there"]},
    "token ids": {"input": [1, 2]},
    "base64": {"input": "hi", "encoding_format": "base64"},
    "fewer dimensions": {"input": "hi", "dimensions": 4},
    "a user": {"input": "hi", "user": "someone"},
    "no text": {"input": []},
    "an empty text": {"input": ""},
    "too many dimensions": {"input": "hi", "dimensions": 9999},
    "an unknown format": {"input": "hi", "encoding_format": "hex"},
    "an unknown field": {"input": "hi", "banana": 1},
    "a number": {"input": 5},
}
_RANKED = {"query": "a", "documents": ["b", "c d"]}
RANKS: Mapping[str, Mapping[str, Any]] = {
    "documents": _RANKED,
    "the best": {**_RANKED, "top_n": 1},
    "without the documents": {**_RANKED, "return_documents": False},
    "objects": {"query": "a", "documents": [{"text": "b"}]},
    "no documents": {"query": "a", "documents": []},
    "no query": {"documents": ["b"]},
}
PAIRS: Mapping[str, Mapping[str, Any]] = {
    "a pair": {"text_1": "a", "text_2": "b"},
    "one with several": {"text_1": "a", "text_2": ["b", "c"]},
    "several with several": {"text_1": ["a", "b"], "text_2": ["b", "c"]},
    "numbers that differ": {"text_1": ["a", "b"], "text_2": ["b", "c", "d"]},
}
FORMS = ("json", "text", "verbose_json", "srt", "vtt", "diarized_json")
PLACES = (
    "/", "/health", "/health/live", "/health/ready", "/healthz", "/ping", "/version",
    "/v1/models", "/v1/models/talks", "/v1/models/broken", "/v1/models/nobody", "/v2",
    "/v2/health/live", "/v2/health/ready", "/v2/models/talks", "/v2/models/talks/config",
    "/v2/models/talks/ready", "/v2/models/talks/versions/1", "/v2/models/nobody",
    "/v2/models/talks/versions/9/ready", "/v1/nothing", "/v2/nothing", "/nothing",
)  # fmt: skip
_TENSOR = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["hi"]}
INFERENCES: Mapping[str, Mapping[str, Any]] = {
    "a tensor": {"inputs": [_TENSOR]},
    "an id": {"id": "mine", "inputs": [_TENSOR]},
    "one output": {"inputs": [_TENSOR], "outputs": [{"name": "text_output"}]},
    "no inputs": {"inputs": []},
    "an unknown input": {"inputs": [{**_TENSOR, "name": "x"}]},
    "a wrong type": {"inputs": [{**_TENSOR, "datatype": "FP32"}]},
    "a wrong shape": {"inputs": [{**_TENSOR, "shape": [2]}]},
    "an unknown output": {"inputs": [_TENSOR], "outputs": [{"name": "x"}]},
    "no datatype": {"inputs": [{"name": "text_input", "shape": [1], "data": ["hi"]}]},
}
BROKEN: Mapping[str, tuple[bytes, Mapping[str, str]]] = {
    "no JSON": (b"{", _JSON),
    "a list": (b"[]", _JSON),
    "nothing": (b"", _JSON),
    "another content type": (b"{}", {"content-type": "text/plain"}),
    "compression": (b"{}", {**_JSON, "content-encoding": "gzip"}),
    "nested lists": (b"[" * 9999, _JSON),
    "invalid UTF-8": (b'{"model": "\xff"}', _JSON),
    "a key twice": (b'{"model": "talks", "model": "talks", "messages": [], "prompt": ""}', _JSON),
}


def requests() -> Iterator[Request]:
    """All of them. Names are unique."""
    yield from _chats()
    yield from _completions()
    yield from _calls()
    yield from _pooling()
    yield from _audio()
    yield from _kserve()
    yield from _tokens()
    yield from (Request(f"GET {path}", path, "GET") for path in PLACES)
    for path in (CHAT, COMPLETIONS, EMBEDDINGS, "/v1/rerank", "/v2/models/talks/infer"):
        for name, (content, headers) in BROKEN.items():
            yield Request(f"{path}: {name}", path, content=content, headers=headers)
        yield Request(f"GET {path}", path, "GET")


def _chats() -> Iterator[Request]:
    chat = {"model": "talks", "messages": MESSAGES}
    for name, fields in {**SHARED, **REFUSED, **CHATS, **REFUSED_CHATS}.items():
        yield from _both(f"chat: {name}", CHAT, **{**chat, **fields})
    for name, fields in STREAM_OPTIONS.items():
        yield _post(f"chat: {name}", CHAT, **chat, stream=True, **fields)
    for model in ("fails", "fails-at-once", "thinks", "harmony"):
        yield from _both(f"chat with {model}", CHAT, model=model, messages=MESSAGES)
    for name, content in {"an image": [_IMAGE], "two images": [_IMAGE, _IMAGE]}.items():
        messages = [{"role": "user", "content": [*content, images.text("What is it?")]}]
        yield from _both(f"chat: {name}", CHAT, model="sees", messages=messages)


def _calls() -> Iterator[Request]:
    for model in ("caller", "two-calls", "thinks-and-calls", "harmony", "talks"):
        for name, fields in CALLS.items():
            body = {"model": model, "messages": MESSAGES, "tools": TOOLS, **fields}
            yield from _both(f"tools with {model}: {name}", CHAT, **body)
    custom = {"model": "custom", "messages": MESSAGES, "tools": [_CUSTOM]}
    yield from _both("a custom tool", CHAT, **custom)


def _completions() -> Iterator[Request]:
    for name, fields in {**SHARED, **REFUSED, **PROMPTS}.items():
        body = {"model": "talks", "prompt": "hi", **fields}
        yield from _both(f"completion: {name}", COMPLETIONS, **body)
    for name, fields in STREAM_OPTIONS.items():
        body = {"model": "talks", "prompt": "hi", "stream": True, **fields}
        yield _post(f"completion: {name}", COMPLETIONS, **body)
    for model in ("fails", "fails-at-once"):
        yield from _both(f"completion with {model}", COMPLETIONS, model=model, prompt="hi")


def _pooling() -> Iterator[Request]:
    for name, fields in VECTORS.items():
        yield _post(f"embeddings: {name}", EMBEDDINGS, model="embeds", **fields)
    yield _post("embeddings of a model of text", EMBEDDINGS, model="sees", input="hi")
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        for name, fields in RANKS.items():
            yield _post(f"{path}: {name}", path, model="scores", **fields)
    for path in ("/v1/score", "/score"):
        for name, fields in PAIRS.items():
            yield _post(f"{path}: {name}", path, model="scores", **fields)


def _audio() -> Iterator[Request]:
    headers = {"content-type": f"multipart/form-data; boundary={audio.BOUNDARY}"}
    fields = [("model", "hears"), ("language", "en")]
    for path in ("/v1/audio/transcriptions", "/v1/audio/translations"):
        for form in FORMS:
            content = audio.form(audio.wav(["one"]), *fields, ("response_format", form))
            yield Request(f"{path}: {form}", path, content=content, headers=headers)
        content = audio.form(audio.wav(["one"]), *fields, ("stream", "true"))
        yield Request(f"{path}: streamed", path, content=content, headers=headers)
        content = audio.form(b"no audio", *fields)
        yield Request(f"{path}: no audio", path, content=content, headers=headers)
        content = audio.form(audio.wav(["one"]), ("model", "talks"))
        yield Request(f"{path}: a model of text", path, content=content, headers=headers)
    speech = {"model": "talks", "input": "hi", "voice": "alloy"}
    yield _post("speech with a model of text", "/v1/audio/speech", **speech)


def _kserve() -> Iterator[Request]:
    for name, fields in INFERENCES.items():
        yield _post(f"infer: {name}", "/v2/models/talks/infer", **fields)
    for verb in ("generate", "generate_stream"):
        path = f"/v2/models/talks/{verb}"
        yield _post(f"{verb}: a text", path, text_input="hi")
        yield _post(f"{verb}: a stream", path, text_input="hi", stream=True)
        yield _post(f"{verb}: an unknown input", path, banana="hi")
    yield _post("the repository's index", "/v2/repository/index")
    yield _post("a load that is not allowed", "/v2/repository/models/talks/load")


def _tokens() -> Iterator[Request]:
    for path in ("/tokenize", "/v1/tokenize"):
        yield _post(f"{path}: a prompt", path, model="talks", prompt="hi there")
        yield _post(f"{path}: a chat", path, model="talks", messages=MESSAGES)
        yield _post(f"{path}: texts", path, model="talks", prompt="hi", return_token_strs=True)
    for path in ("/detokenize", "/v1/detokenize"):
        yield _post(f"{path}: ids", path, model="talks", tokens=[1, 2])
        yield _post(f"{path}: an id out of range", path, model="talks", tokens=[2**31])
    yield _post("a rendered chat", f"{CHAT}/render", model="talks", messages=MESSAGES)
    yield _post("a rendered prompt", f"{COMPLETIONS}/render", model="talks", prompt="hi")
