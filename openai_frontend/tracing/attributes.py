"""Attributes of a request's span, by OpenTelemetry's semantic conventions for HTTP servers and for
generative AI (repository semantic-conventions-genai, as of 2026-06).

Prompts and outputs are never included: `gen_ai.input.messages`, `gen_ai.output.messages`,
`gen_ai.request.stop_sequences` and `url.path` are not set.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from openai_frontend.request_context.record import APIS, RequestRecord

Attribute = str | bool | int | float | tuple[str, ...]

# Route -> `gen_ai.operation.name`; our own name if the conventions have none
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/decisions": "decision",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    "/embed_sparse": "embeddings",
    "/v1/pooling": "pooling",
    "/pooling": "pooling",
    "/v1/classify": "classify",
    "/classify": "classify",
    "/v1/moderations": "moderate",
    "/v1/score": "score",
    "/score": "score",
    "/rerank": "rerank",
    "/v1/rerank": "rerank",
    "/v2/rerank": "rerank",
}
_TRITON = "infer"  # KServe's requests

# Field of SamplingParams -> attribute
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
    host: str
    port: int | None = None  # None for a Unix socket
    scheme: str = "http"


def operation(record: RequestRecord) -> str | None:
    """`gen_ai.operation.name`; None for a request without a model."""
    if not record.model:
        return None
    known = _OPERATIONS.get(record.route)
    return _TRITON if known is None and record.route.startswith("/v2/") else known


def name(record: RequestRecord) -> str:
    """The span's name: `chat demo`, `GET /v1/models`, or `GET` if no route matches.

    `HTTP` replaces a method that OpenTelemetry does not know, as its convention says.
    """
    operation_name = operation(record)
    if operation_name is not None:
        return f"{operation_name} {record.model}"
    method = "HTTP" if record.method == "_OTHER" else record.method
    return f"{method} {record.route}" if record.route else method


def error_type(record: RequestRecord) -> str | None:
    """The error code, or the status; None without an error."""
    if record.error is not None:
        return record.error
    return str(record.status) if record.status >= 400 else None


def of(record: RequestRecord, address: ServerAddress) -> dict[str, Attribute]:
    """All attributes with a value."""
    attributes: dict[str, Attribute | None] = {
        "http.request.method": record.method,
        "http.route": record.route or None,
        "http.response.status_code": record.status,
        "url.scheme": address.scheme,
        "server.address": address.host,
        "server.port": address.port,
        "openai.api.type": APIS.get(record.route),
        "error.type": error_type(record),
        "openai_frontend.request_id": record.request_id,
        "openai_frontend.key": record.key,
    }
    if (operation_name := operation(record)) is not None:
        attributes.update(_of_model(record, operation_name))
    return {name: value for name, value in attributes.items() if value is not None}


def _of_model(record: RequestRecord, operation_name: str) -> Mapping[str, Attribute | None]:
    attributes: dict[str, Attribute | None] = {
        "gen_ai.operation.name": operation_name,
        "gen_ai.provider.name": "triton",
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.core_model,
        "gen_ai.response.id": record.response_id,
    }
    if record.prompt_tokens:
        attributes["gen_ai.usage.input_tokens"] = record.prompt_tokens
    if record.generations:
        attributes.update(_of_generations(record))
    return attributes


def _of_generations(record: RequestRecord) -> Mapping[str, Attribute | None]:
    generations = record.generations
    reasons = tuple(
        each.usage.finish_reason for each in generations if each.usage.finish_reason is not None
    )
    first_ns = min((each.first_ns for each in generations if each.first_ns), default=None)
    params = generations[0].params
    return {
        **{name: params.get(param) for param, name in _REQUESTED.items()},
        "gen_ai.request.stream": record.stream,
        "gen_ai.request.choice.count": len(generations) if len(generations) > 1 else None,
        "gen_ai.response.finish_reasons": reasons or None,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens or None,
        "gen_ai.response.time_to_first_chunk": (
            (first_ns - record.begun_ns) / 1e9 if first_ns and record.stream else None
        ),
    }
