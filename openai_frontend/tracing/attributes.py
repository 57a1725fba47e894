"""The attributes of a request's span, by OpenTelemetry's semantic conventions: for HTTP servers,
and for generative AI (its repository semantic-conventions-genai, as of 2026-06).

No text of either side: `gen_ai.input.messages`, `gen_ai.output.messages`,
`gen_ai.request.stop_sequences` and `url.path` are never set.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from openai_frontend.request_record import RequestRecord

Attribute = str | bool | int | float | tuple[str, ...]

# Ends of routes -> `gen_ai.operation.name`; those without a name of the conventions have our own
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v1/score": "score",
    "/score": "score",
    "/rerank": "rerank",
    "/v1/rerank": "rerank",
    "/v2/rerank": "rerank",
}
_TRITON = "infer"  # KServe's requests

# SamplingParams' names -> the conventions'
_REQUESTED = {
    "max_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
}


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where the server listens."""

    host: str
    port: int | None = None  # None for a Unix socket
    scheme: str = "http"


def operation(record: RequestRecord) -> str | None:
    """What the model was asked for; None for a request that is for no model."""
    if not record.model:
        return None
    known = _OPERATIONS.get(record.route)
    return _TRITON if known is None and record.route.startswith("/v2/") else known


def name(record: RequestRecord) -> str:
    """`chat demo`, or `GET /v1/models`: few, for tools group by it."""
    asked = operation(record)
    return f"{record.method} {record.route}" if asked is None else f"{asked} {record.model}"


def error_type(record: RequestRecord) -> str | None:
    """The code of the failure, or the status; None where nothing failed."""
    if record.error is not None:
        return record.error
    return str(record.status) if record.status >= 400 else None


def of(record: RequestRecord, address: ServerAddress) -> dict[str, Attribute]:
    """All of them that are known."""
    told: dict[str, Attribute | None] = {
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.status,
        "url.scheme": address.scheme,
        "server.address": address.host,
        "server.port": address.port,
        "error.type": error_type(record),
        "openai_frontend.request_id": record.request_id,
        "openai_frontend.key": record.key,
    }
    if (asked := operation(record)) is not None:
        told.update(_of_model(record, asked))
    return {name: value for name, value in told.items() if value is not None}


def _of_model(record: RequestRecord, asked: str) -> Mapping[str, Attribute | None]:
    told: dict[str, Attribute | None] = {
        "gen_ai.operation.name": asked,
        "gen_ai.provider.name": "triton",
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.core_model,
        "gen_ai.response.id": record.response_id,
    }
    if record.prompt_tokens:
        told["gen_ai.usage.input_tokens"] = record.prompt_tokens
    if record.generations:
        told.update(_of_generations(record))
    return told


def _of_generations(record: RequestRecord) -> Mapping[str, Attribute | None]:
    generations = record.generations
    reasons = tuple(
        each.usage.finish_reason for each in generations if each.usage.finish_reason is not None
    )
    first_ns = min((each.first_ns for each in generations if each.first_ns), default=None)
    asked = generations[0].params
    return {
        **{name: asked.get(param) for param, name in _REQUESTED.items()},
        "gen_ai.request.stream": record.stream,
        "gen_ai.request.choice.count": len(generations) if len(generations) > 1 else None,
        "gen_ai.response.finish_reasons": reasons or None,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens or None,
        "gen_ai.response.time_to_first_chunk": (
            (first_ns - record.begun_ns) / 1e9 if first_ns and record.stream else None
        ),
    }
