"""The bytes of the requests, the same for every server."""

import json

from benchmarks.peers.load import CHAT, Load

_WORDS = (
    "gateway", "stream", "token", "model", "server", "engine", "answer", "question", "benchmark",
    "request", "batch", "memory", "number", "weather", "river", "mountain", "city", "paper",
    "letter", "window", "garden", "kitchen", "music", "winter", "summer",
)  # fmt: skip


def body(load: Load, number: int) -> bytes:
    """The body of the request with this number; no two prompts are alike."""
    content = _chat(load, number) if load.kind == CHAT else _embeddings(load, number)
    return json.dumps({"model": load.model, **content}).encode()


def post(load: Load, number: int) -> bytes:
    """The whole request."""
    path = "/v1/chat/completions" if load.kind == CHAT else "/v1/embeddings"
    content = body(load, number)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{load.port}\r\nAuthorization: Bearer none\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def _chat(load: Load, number: int) -> dict[str, object]:
    question = f"Question {number}: tell me in a few sentences how a benchmark stays honest."
    return {
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": question},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": load.tokens,
        "ignore_eos": True,
        "temperature": 0,
    }


def _embeddings(load: Load, number: int) -> dict[str, object]:
    texts = [_sentence(number * load.batch + each) for each in range(load.batch)]
    return {"input": texts, "encoding_format": load.encoding}


def _sentence(number: int) -> str:
    words = (_WORDS[(number * (step + 3) + step) % len(_WORDS)] for step in range(16))
    return f"Sentence {number}: {' '.join(words)}."
