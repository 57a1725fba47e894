"""Anthropic's Messages API: requests, complete messages, and the events of a stream."""

import re
from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag
from typing_extensions import TypedDict

from schemas.json_value import JSONObject, JSONValue, open_object
from schemas.sampling import INT32_MAX, ModelName, RequestFields, StopTexts
from schemas.tools import MAX_TOOLS, Name

# Most of their types end with a date
_SERVER_TOOL = re.compile(r"[a-z0-9_]+_20\d{6}|mcp_toolset|tool_search_tool_(bm25|regex)")
_MAX_BLOCKS = 10_000  # of one message

# Parts of a history that another server or the client's harness has written
_NOTED = frozenset(
    {"server_tool_use", "mcp_tool_use", "container_upload", "compaction", "browser_state",
     "tool_addition", "tool_removal", "mcp_tool_listing", "fallback"}
)  # fmt: skip


def _type_of(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else None


def _kind(value: Any) -> str | None:
    """An object's tag, by its `type`."""
    kind = _type_of(value)
    return None if kind is None else f"<{kind}>"


def _block_kind(value: Any) -> str | None:
    kind = _type_of(value)
    if kind is None:
        return None
    noted = kind in _NOTED or (kind != "tool_result" and kind.endswith("_tool_result"))
    return "<server_tool_use>" if noted else f"<{kind}>"


def _tool_kind(value: Any) -> str | None:
    if not isinstance(value, dict):
        return None
    kind = value.get("type")
    if kind is None:
        return "<custom>"
    if not isinstance(kind, str):
        return None
    return "<a server tool>" if _SERVER_TOOL.fullmatch(kind) else f"<{kind}>"


@open_object
class TextBlockParam(TypedDict):
    """Text."""

    type: Literal["text"]
    text: str


@open_object
class Base64Source(TypedDict):
    """A file as base64."""

    type: Literal["base64"]
    media_type: str
    data: str


@open_object
class URLSource(TypedDict):
    """A file at an address."""

    type: Literal["url"]
    url: str


@open_object
class FileSource(TypedDict):
    """A file of Anthropic's Files API, which is refused."""

    type: Literal["file"]


@open_object
class PlainTextSource(TypedDict):
    """A document as text."""

    type: Literal["text"]
    data: str


ImageSource = Annotated[
    Annotated[Base64Source, Tag("<base64>")]
    | Annotated[URLSource, Tag("<url>")]
    | Annotated[FileSource, Tag("<file>")],
    Discriminator(_kind),
]


@open_object
class ImageBlockParam(TypedDict):
    """An image."""

    type: Literal["image"]
    source: ImageSource


_TextOrImage = Annotated[
    Annotated[TextBlockParam, Tag("<text>")] | Annotated[ImageBlockParam, Tag("<image>")],
    Discriminator(_kind),
]


@open_object
class ContentSource(TypedDict):
    """A document as blocks."""

    type: Literal["content"]
    content: (
        Annotated[str, Tag("<a string>")]
        | Annotated[
            list[_TextOrImage],
            Field(max_length=_MAX_BLOCKS, fail_fast=True),
            Tag("<an array of objects>"),
        ]
    )


DocumentSource = Annotated[
    Annotated[PlainTextSource, Tag("<text>")]
    | Annotated[ContentSource, Tag("<content>")]
    | Annotated[Base64Source, Tag("<base64>")]
    | Annotated[URLSource, Tag("<url>")]
    | Annotated[FileSource, Tag("<file>")],
    Discriminator(_kind),
]


@open_object
class DocumentBlockParam(TypedDict):
    """A document, with a title and a description of it."""

    type: Literal["document"]
    source: DocumentSource
    title: NotRequired[str | None]
    context: NotRequired[str | None]


@open_object
class SearchResultBlockParam(TypedDict):
    """One result of a search."""

    type: Literal["search_result"]
    source: str
    title: str
    content: Annotated[list[TextBlockParam], Field(max_length=_MAX_BLOCKS, fail_fast=True)]


@open_object
class ToolReferenceBlockParam(TypedDict):
    """A tool that a search for tools has found."""

    type: Literal["tool_reference"]
    tool_name: str


@open_object
class ThinkingBlockParam(TypedDict):
    """Reasoning of an earlier turn. The signature may be another server's, or absent."""

    type: Literal["thinking"]
    thinking: str
    signature: NotRequired[str | None]


@open_object
class RedactedThinkingBlockParam(TypedDict):
    """Reasoning that only another server can read."""

    type: Literal["redacted_thinking"]


@open_object
class ToolUseBlockParam(TypedDict):
    """A call of an earlier turn."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: JSONObject


@open_object
class ServerToolUseBlockParam(TypedDict):
    """A call that another server ran, or its result, of any type."""

    type: str


_ResultBlock = Annotated[
    Annotated[TextBlockParam, Tag("<text>")]
    | Annotated[ImageBlockParam, Tag("<image>")]
    | Annotated[DocumentBlockParam, Tag("<document>")]
    | Annotated[SearchResultBlockParam, Tag("<search_result>")]
    | Annotated[ToolReferenceBlockParam, Tag("<tool_reference>")]
    | Annotated[ServerToolUseBlockParam, Tag("<server_tool_use>")],
    Discriminator(_block_kind),
]
_ResultBlocks = Annotated[list[_ResultBlock], Field(max_length=_MAX_BLOCKS, fail_fast=True)]


@open_object
class ToolResultBlockParam(TypedDict):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: NotRequired[
        Annotated[str, Tag("<a string>")]
        | Annotated[_ResultBlocks, Tag("<an array of objects>")]
        | None
    ]
    is_error: NotRequired[bool | None]


ContentBlockParam = Annotated[
    Annotated[TextBlockParam, Tag("<text>")]
    | Annotated[ImageBlockParam, Tag("<image>")]
    | Annotated[DocumentBlockParam, Tag("<document>")]
    | Annotated[SearchResultBlockParam, Tag("<search_result>")]
    | Annotated[ThinkingBlockParam, Tag("<thinking>")]
    | Annotated[RedactedThinkingBlockParam, Tag("<redacted_thinking>")]
    | Annotated[ToolUseBlockParam, Tag("<tool_use>")]
    | Annotated[ToolResultBlockParam, Tag("<tool_result>")]
    | Annotated[ToolReferenceBlockParam, Tag("<tool_reference>")]
    | Annotated[ServerToolUseBlockParam, Tag("<server_tool_use>")],
    Discriminator(_block_kind),
]
ContentBlocks = Annotated[list[ContentBlockParam], Field(max_length=_MAX_BLOCKS, fail_fast=True)]


@open_object
class MessageParam(TypedDict):
    """One message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: (
        Annotated[str, Tag("<a string>")] | Annotated[ContentBlocks, Tag("<an array of objects>")]
    )


@open_object
class ToolParam(TypedDict):
    """A tool that the client runs."""

    type: NotRequired[Literal["custom"] | None]
    name: Name
    description: NotRequired[str | None]
    input_schema: JSONObject
    strict: NotRequired[bool | None]


@open_object
class ServerToolParam(TypedDict):
    """A tool that the model provider runs or defines. The model is not offered it."""

    type: str
    name: NotRequired[str | None]


ToolUnion = Annotated[
    Annotated[ToolParam, Tag("<custom>")] | Annotated[ServerToolParam, Tag("<a server tool>")],
    Discriminator(_tool_kind),
]


@open_object
class ToolChoiceAuto(TypedDict):
    """The model decides."""

    type: Literal["auto"]
    disable_parallel_tool_use: NotRequired[bool | None]


@open_object
class ToolChoiceAny(TypedDict):
    """The model must call a tool."""

    type: Literal["any"]
    disable_parallel_tool_use: NotRequired[bool | None]


@open_object
class ToolChoiceTool(TypedDict):
    """The model must call this tool."""

    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: NotRequired[bool | None]


@open_object
class ToolChoiceNone(TypedDict):
    """The model must not call tools."""

    type: Literal["none"]


MessagesToolChoice = Annotated[
    Annotated[ToolChoiceAuto, Tag("<auto>")]
    | Annotated[ToolChoiceAny, Tag("<any>")]
    | Annotated[ToolChoiceTool, Tag("<tool>")]
    | Annotated[ToolChoiceNone, Tag("<none>")],
    Discriminator(_kind),
]
_Display = Literal["summarized", "omitted", "updates"]


@open_object
class ThinkingEnabled(TypedDict):
    """Reasoning of at most so many tokens."""

    type: Literal["enabled"]
    budget_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)]
    display: NotRequired[_Display | None]


@open_object
class ThinkingOther(TypedDict):
    """No reasoning, or as much as the model does by itself."""

    type: Literal["disabled", "adaptive", "between_tools"]
    display: NotRequired[_Display | None]


ThinkingConfig = Annotated[
    Annotated[ThinkingEnabled, Tag("<enabled>")]
    | Annotated[ThinkingOther, Tag("<disabled>")]
    | Annotated[ThinkingOther, Tag("<adaptive>")]
    | Annotated[ThinkingOther, Tag("<between_tools>")],
    Discriminator(_kind),
]


@open_object
class JSONOutputFormat(TypedDict):
    """JSON that matches the schema."""

    type: Literal["json_schema"]
    schema: JSONObject


@open_object
class OutputConfig(TypedDict):
    """How much effort the model makes, and the format of its output."""

    effort: NotRequired[Literal["low", "medium", "high", "xhigh", "max"] | None]
    format: NotRequired[JSONOutputFormat | None]


class CountTokensRequest(RequestFields):
    """The body of POST /v1/messages/count_tokens: what decides the prompt."""

    model: ModelName = None
    messages: Annotated[list[MessageParam], Field(min_length=1, max_length=100_000, fail_fast=True)]
    system: (
        Annotated[str, Tag("<a string>")]
        | Annotated[
            list[TextBlockParam],
            Field(max_length=_MAX_BLOCKS, fail_fast=True),
            Tag("<an array of objects>"),
        ]
        | None
    ) = None
    tools: Annotated[list[ToolUnion], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None

    # Accepted without effect on the output
    cache_control: JSONValue = None  # prefixes are cached without being marked
    context_management: JSONValue = None
    speed: Literal["standard", "fast"] | None = None
    billing_policy: JSONValue = None
    fallback_credit_token: JSONValue = None
    user_profile_id: str | None = None
    workspace_id: str | None = None


class MessagesRequest(CountTokensRequest):
    """The body of POST /v1/messages."""

    max_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)]
    stream: bool | None = None
    stop_sequences: StopTexts | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None

    # Accepted without effect on the output
    metadata: JSONValue = None
    service_tier: Literal["auto", "standard_only"] | None = None
    inference_geo: str | None = None
    container: JSONValue = None
    diagnostics: JSONValue = None


class OutputTokensDetails(BaseModel):
    """Parts of the output."""

    thinking_tokens: int


class MessageUsage(BaseModel):
    """Token counts. Those of the prompt are the sum of the first three."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    cache_creation: None
    server_tool_use: None
    inference_geo: None
    service_tier: Literal["standard"]


class TextBlock(BaseModel):
    """Text of the model."""

    type: Literal["text"]
    text: str
    citations: None


class ThinkingBlock(BaseModel):
    """Reasoning of the model."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class DirectCaller(BaseModel):
    """The model, not another tool."""

    type: Literal["direct"]


class ToolUseBlock(BaseModel):
    """A call of a tool, which the client runs."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: DirectCaller


StopReason = Literal[
    "end_turn", "stop_sequence", "tool_use", "max_tokens", "model_context_window_exceeded"
]


class Message(BaseModel):
    """A complete message; without content as long as it is only the beginning of a stream."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Annotated[TextBlock | ThinkingBlock | ToolUseBlock, Field(discriminator="type")]]
    stop_reason: StopReason | None
    stop_sequence: str | None
    stop_details: None
    container: None
    usage: MessageUsage


class MessageStreamEvent(BaseModel):
    """One event of a stream, whose other members depend on its type."""

    model_config = ConfigDict(extra="allow")

    type: Literal[
        "message_start", "content_block_start", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop", "ping", "error",
    ]  # fmt: skip


class MessageTokensCount(BaseModel):
    """The length of a prompt."""

    input_tokens: int


class AnthropicModel(BaseModel):
    """A model in the form of Anthropic's list."""

    type: Literal["model"] = "model"
    id: str
    display_name: str
    created_at: str
    max_input_tokens: int | None = None
    max_tokens: int | None = None
    lifecycle: Literal["active"] = "active"


class AnthropicModelList(BaseModel):
    """A page of the list of models."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


class AnthropicErrorObject(BaseModel):
    """The type and the text of an error."""

    type: str
    message: str


class AnthropicErrorResponse(BaseModel):
    """The body of every error; a client takes one with other members for a proxy's."""

    type: Literal["error"]
    error: AnthropicErrorObject
    request_id: str
