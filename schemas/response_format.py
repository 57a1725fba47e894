"""Constraints on the output: OpenAI's `response_format` and vLLM's `structured_outputs`."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Discriminator, Field, Tag
from typing_extensions import TypedDict

from schemas.json_value import JSONObject, open_object

MAX_CONSTRAINT_BYTES = 256 * 1024  # of its JSON
# Limit of a grammar that the gateway writes: it contains the request's tools, at most 1 MiB, in
# one or two forms, and at most 1 MiB of repeated parts.
MAX_TAG_CHARACTERS = 4 * 1024 * 1024

Pattern = Annotated[str, Field(min_length=1, max_length=65_536)]
Choices = Annotated[list[str], Field(min_length=1, max_length=1024, fail_fast=True)]
StructuralTag = Annotated[str, Field(min_length=1, max_length=MAX_TAG_CHARACTERS)]


@open_object
class ResponseFormatText(TypedDict):
    """Any text: the default."""

    type: Literal["text"]


@open_object
class ResponseFormatJSONObject(TypedDict):
    """Any JSON object."""

    type: Literal["json_object"]


@open_object
class JSONSchema(TypedDict):
    """A JSON schema with its name; the name is only used in logs."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]
    description: NotRequired[str | None]
    schema: NotRequired[JSONObject | None]
    strict: NotRequired[bool | None]


@open_object
class ResponseFormatJSONSchema(TypedDict):
    """JSON that matches a schema."""

    type: Literal["json_schema"]
    json_schema: JSONSchema


@open_object
class ResponseFormatStructuralTag(TypedDict):
    """vLLM's: xgrammar's structural tag, the object itself."""

    type: Literal["structural_tag"]
    format: NotRequired[JSONObject]
    structures: NotRequired[list[JSONObject]]
    triggers: NotRequired[list[str]]


def _kind(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else None
    return f"<{kind}>" if isinstance(kind, str) else None


ResponseFormat = Annotated[
    Annotated[ResponseFormatText, Tag("<text>")]
    | Annotated[ResponseFormatJSONObject, Tag("<json_object>")]
    | Annotated[ResponseFormatJSONSchema, Tag("<json_schema>")]
    | Annotated[ResponseFormatStructuralTag, Tag("<structural_tag>")],
    Discriminator(_kind),
]


@open_object
class StructuredOutputsParam(TypedDict):
    """vLLM's: exactly one of the first six."""

    json: NotRequired[
        Annotated[str, Tag("<a string>")] | Annotated[JSONObject, Tag("<an object>")] | None
    ]
    regex: NotRequired[Pattern | None]
    choice: NotRequired[Choices | None]
    grammar: NotRequired[Pattern | None]
    json_object: NotRequired[bool | None]
    structural_tag: NotRequired[StructuralTag | None]
    disable_any_whitespace: NotRequired[bool | None]
    whitespace_pattern: NotRequired[Pattern | None]
