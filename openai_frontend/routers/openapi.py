"""The OpenAPI document: FastAPI's, plus what it cannot see of routes that parse bodies themselves.

Never looks at a request.
"""

import copy
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from openai_frontend.auth.api_keys import OPENED_BY, RouteScope
from openai_frontend.routers.examples import EXAMPLES, Example
from openai_frontend.routers.routing import DirectRoute, all_routes
from schemas.errors import ErrorResponse
from schemas.kserve import KServeError
from schemas.messages import AnthropicErrorResponse

Json = dict[str, Any]

_REF = "#/components/schemas/{model}"
_NO_MODEL = "no-model-can-do-this"  # placeholder in examples while no model is ready for them

# The operationId and title of each path where the handler's name gives neither: OpenAI's ids for
# OpenAI's routes come from the names, and an alias needs an id of its own.
_NAMES: Mapping[str, tuple[str, str]] = {
    "/classify": ("createClassificationWithoutVersion", "Classify texts"),
    "/health": ("getHealth", "Readiness of the models"),
    "/health/live": ("getLiveness", "Liveness of the process"),
    "/health/ready": ("getReadiness", "Readiness of the models"),
    "/healthz": ("getHealthz", "Readiness of the models"),
    "/ping": ("ping", "Readiness of the models"),
    "/pooling": ("createPoolingWithoutVersion", "Pool inputs"),
    "/rerank": ("createRerankAnyFormat", "Rerank documents (Jina's or TEI's format)"),
    "/score": ("createScoreWithoutVersion", "Score pairs of texts"),
    "/v1/classify": ("createClassification", "Classify texts"),
    "/v1/detokenize": ("detokenizeV1", "Detokenize"),
    "/v1/load_lora_adapter": ("loadLoRAAdapter", "Load LoRA adapter"),
    "/v1/pooling": ("createPooling", "Pool inputs"),
    "/v1/rerank": ("createRerank", "Rerank documents (Jina's format)"),
    "/v1/score": ("createScore", "Score pairs of texts"),
    "/v1/tokenize": ("tokenizeV1", "Tokenize"),
    "/v1/unload_lora_adapter": ("unloadLoRAAdapter", "Unload LoRA adapter"),
    "/v2/health/live": ("serverLive", "Server liveness"),
    "/v2/health/ready": ("serverReady", "Server readiness"),
    "/v2/repository/models/{model}/load": ("repositoryModelLoad", "Load a repository's model"),
    "/v2/repository/models/{model}/unload": (
        "repositoryModelUnload",
        "Unload a repository's model",
    ),
    "/v2/rerank": ("createRerankCohere", "Rerank documents (Cohere's format)"),
}

_KEY_SCHEME: Json = {
    "type": "http",
    "scheme": "bearer",
    "description": "An API key, or a JSON Web Token if the server accepts an identity provider's, "
    "in `Authorization: Bearer KEY`; `x-api-key` and `api-key` work too. Each operation names the "
    "scope that the key needs. 401: no valid key; 403: its scopes do not include the operation's.",
}

_HEADERS: Json = {
    "x-request-id": {
        "description": "The request's id: the client's `x-request-id` or a new one.",
        "schema": {"type": "string"},
    },
    "openai-processing-ms": {
        "description": "Milliseconds until the response started.",
        "schema": {"type": "string", "pattern": "^[0-9]+$"},
    },
}


class RequestBody(Json):
    """A route's `openapi_extra` that remembers the schemas it refers to."""

    schemas: tuple[type[BaseModel], ...] = ()


def request_body(
    *schemas: type[BaseModel],
    chunk: type[BaseModel] | None = None,
    event: type[BaseModel] | None = None,
    named_event: type[BaseModel] | None = None,
) -> RequestBody:
    """Describes a route's body: any of the schemas.

    `chunk` is the event of an OpenAI stream, `event` that of a KServe stream, `named_event` that of
    a stream of Anthropic's, if the route streams.
    """
    references = [_reference(schema) for schema in schemas]
    schema = references[0] if len(references) == 1 else {"anyOf": references}
    extra = RequestBody(
        requestBody={"required": True, "content": {"application/json": {"schema": schema}}}
    )
    extra.schemas = schemas
    if chunk is not None:
        extra.schemas += (chunk,)
        extra["responses"] = {"200": {"content": {"text/event-stream": _stream(chunk)}}}
    if event is not None:
        extra.schemas += (event,)
        extra["responses"] = {"200": {"content": {"text/event-stream": _kserve_stream(event)}}}
    if named_event is not None:
        extra.schemas += (named_event, AnthropicErrorResponse)
        extra["responses"] = {"200": {"content": {"text/event-stream": _named_stream(named_event)}}}
    return extra


def form_body(schema: type[BaseModel], *events: type[BaseModel]) -> RequestBody:
    """Describes a form with a `file`; `events` are those of the route's stream."""
    extra = request_body(schema)
    file = {"type": "object", "required": ["file"], "properties": {"file": {
        "type": "string", "contentMediaType": "application/octet-stream"}}}  # fmt: skip
    form = {"allOf": [_reference(schema), file]}
    extra["requestBody"]["content"] = {"multipart/form-data": {"schema": form}}
    extra.schemas += events
    schemas: tuple[type[BaseModel], ...] = (*events, ErrorResponse)
    content = {"anyOf": [_reference(each) for each in schemas]}
    stream = {"type": "string", "contentMediaType": "text/event-stream", "contentSchema": content}
    kinds = {"text/event-stream": {"schema": stream}, "text/plain": {"schema": {"type": "string"}}}
    extra["responses"] = {"200": {"content": kinds}}
    return extra


def optional_body(schema: type[BaseModel], *events: type[BaseModel]) -> RequestBody:
    """Describes an optional body; `events` are those of the route's stream."""
    extra = request_body(schema)
    extra["requestBody"]["required"] = False
    extra.schemas += events
    schemas: tuple[type[BaseModel], ...] = (*events, ErrorResponse)
    content = {"anyOf": [_reference(each) for each in schemas]}
    stream = {"type": "string", "contentMediaType": "text/event-stream", "contentSchema": content}
    extra["responses"] = {"200": {"content": {"text/event-stream": {"schema": stream}}}}
    return extra


def _reference(schema: type[BaseModel]) -> Json:
    return {"$ref": _REF.format(model=schema.__name__)}


def _failure(description: str, schema: type[BaseModel] = ErrorResponse) -> Json:
    """An error response; always JSON."""
    content = {"application/json": {"schema": _reference(schema)}}
    return {"description": description, "content": content}


ERRORS: dict[int | str, Json] = {
    "4XX": _failure("The request is invalid or not allowed."),
    "5XX": _failure("The server or the model failed."),
}


# In Anthropic's form
ANTHROPIC_ERRORS: dict[int | str, Json] = {
    "4XX": _failure("The request is invalid or not allowed.", AnthropicErrorResponse),
    "5XX": _failure("The server or the model failed.", AnthropicErrorResponse),
}


def _named_stream(event: type[BaseModel]) -> Json:
    description = (
        f"With `stream`: each event has its type in `event: ` and, as a {event.__name__}, in "
        "`data: `. A failed stream ends with an event of the type `error`."
    )
    content = _reference(event)
    schema = {"type": "string", "contentMediaType": "text/event-stream", "contentSchema": content}
    return {"schema": {**schema, "description": description}}


def _stream(chunk: type[BaseModel]) -> Json:
    """OpenAPI 3.1 cannot describe a stream's events, so JSON Schema describes its content."""
    description = (
        f"With `stream`: each event is `data: ` and a {chunk.__name__} as JSON; the last is "
        "`data: [DONE]`. A failed stream ends with an ErrorResponse instead, without `[DONE]`."
    )
    content = {"anyOf": [_reference(chunk), _reference(ErrorResponse)]}
    schema = {"type": "string", "contentMediaType": "text/event-stream", "contentSchema": content}
    return {"schema": {**schema, "description": description}}


def _kserve_stream(event: type[BaseModel]) -> Json:
    description = (
        f"Each event is `data: ` and a {event.__name__} as JSON, one for each response of the "
        "model. The last event of a failed stream is a KServeError."
    )
    content = {"anyOf": [_reference(event), _reference(KServeError)]}
    schema = {"type": "string", "contentMediaType": "text/event-stream", "contentSchema": content}
    return {"schema": {**schema, "description": description}}


class Document:
    """The OpenAPI document of an application, generated when it is first requested."""

    def __init__(
        self,
        app: FastAPI,
        *,
        public_scopes: Collection[RouteScope] | None = None,
        root_path: str = "",
    ) -> None:
        """`public_scopes` need no key; None: nothing needs one."""
        self._app = app
        self._root_path = root_path
        self._public_scopes = public_scopes
        self._written: Json | None = None
        self._lock = threading.Lock()

    def with_models(self, models: Mapping[str, str]) -> Json:
        """`models`: a model for each task, so that the examples can be sent unchanged."""
        with self._lock:  # requests run in threads, and the first generates it
            if self._written is None:
                self._written = _written(self._app)
                if self._public_scopes is not None:
                    _add_security(self._written, self._app, self._public_scopes)
                if self._root_path:
                    self._written["servers"] = [{"url": self._root_path}]
        document = copy.deepcopy(self._written)
        for path, _, operation in _operations(document):
            _add_examples(operation, EXAMPLES.get(path, {}), models)
        return document


def _written(app: FastAPI) -> Json:
    document = app.openapi()
    bodies = (getattr(route, "openapi_extra", None) for route in all_routes(app))
    read = [schema for body in bodies if isinstance(body, RequestBody) for schema in body.schemas]
    document["components"]["schemas"].update(_definitions([ErrorResponse, *read]))
    for path, method, operation in _operations(document):
        _name(operation, path)
        _add_path_parameters(operation, path)
        if method == "post":  # FastAPI adds it for bodies that it parses itself
            operation["responses"].pop("422", None)
        for response in operation["responses"].values():
            response["headers"] = {**_HEADERS, **response.get("headers", {})}
    return document


def _add_security(document: Json, app: FastAPI, public_scopes: Collection[RouteScope]) -> None:
    """Adds which operations need a key, and with which scope."""
    document["components"]["securitySchemes"] = {"key": _KEY_SCHEME}
    for route in all_routes(app):
        if isinstance(route, DirectRoute) and route.scope is not None and route.include_in_schema:
            is_open = route.scope in public_scopes
            needed = [] if is_open else [{"key": [scope]} for scope in OPENED_BY[route.scope]]
            for method in route.methods:
                document["paths"][route.path_format][method.lower()]["security"] = needed


def _definitions(schemas: Iterable[type[BaseModel]]) -> Json:
    pairs = [(schema, "validation") for schema in dict.fromkeys(schemas)]
    _, definitions = models_json_schema(pairs, ref_template=_REF)  # type: ignore[arg-type]
    written: Json = definitions["$defs"]
    return written


def _operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def _name(operation: Json, path: str) -> None:
    """`Create Chat Completion`, as FastAPI reads a handler's name, gets OpenAI's operationId
    createChatCompletion and a title in sentence case.
    """
    first, *rest = operation["summary"].split()
    derived = "".join([first.lower(), *rest]), " ".join([first, *map(str.lower, rest)])
    operation["operationId"], operation["summary"] = _NAMES.get(path, derived)


def _add_path_parameters(operation: Json, path: str) -> None:
    for name in re.findall(r"{(\w+)}", path):
        parameter = {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        operation.setdefault("parameters", []).append(parameter)


def _add_examples(
    operation: Json, examples: Mapping[str, Example], models: Mapping[str, str]
) -> None:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body is not None:
        body["examples"] = {
            name: {"summary": example.summary, "value": example.body(_model(example, models))}
            for name, example in examples.items()
        }
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path" and models:
            parameter["example"] = next(iter(models.values()))


def _model(example: Example, models: Mapping[str, str]) -> str:
    return next((models[task] for task in example.tasks if task in models), _NO_MODEL)
