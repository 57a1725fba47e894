"""What /openapi.json tells of the routes that read their bodies themselves. Nothing at run time."""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from schemas.chat_completions import ChatCompletionRequest
from schemas.completions import CompletionRequest
from schemas.errors import ErrorResponse

_REF = "#/components/schemas/{model}"
_REQUESTS: tuple[type[BaseModel], ...] = (ChatCompletionRequest, CompletionRequest)

ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorResponse, "description": "The request cannot be served as it is."},
    "5XX": {"model": ErrorResponse, "description": "The server or the model failed."},
}


def request_body(schema: type[BaseModel]) -> dict[str, Any]:
    """A route's `openapi_extra`; the schema itself is added by `describe_requests`."""
    reference = {"$ref": _REF.format(model=schema.__name__)}
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}
    }


def describe_requests(app: FastAPI) -> None:
    """Adds the request schemas, which FastAPI cannot see, to what it writes."""
    written = app.openapi

    def openapi() -> dict[str, Any]:
        document = written()
        _, definitions = models_json_schema(
            [(schema, "validation") for schema in _REQUESTS], ref_template=_REF
        )
        document["components"]["schemas"].update(definitions["$defs"])
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way
