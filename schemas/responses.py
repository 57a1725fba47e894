"""OpenAI's Responses resource: the request.

Objects that other servers have made (histories move between providers) are read leniently: of an
input item, only the members that the gateway reads are validated.
"""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag
from typing_extensions import TypedDict

from schemas.json_value import JSONObject, JSONValue, open_object
from schemas.response_format import JSONSchema
from schemas.sampling import INT32_MAX, PromptCacheOptions, RequestFields, SamplingFields
from schemas.tools import MAX_TOOLS, CustomFormatText, Name

MAX_INPUT_ITEMS = 100_000
MAX_PARTS = 10_000


Text = Annotated[str, Tag("<a string>")]


def type_of(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else None
    return f"<{kind}>" if isinstance(kind, str) else None


def form_of(value: Any) -> str:
    if isinstance(value, str):
        return "<a string>"
    if isinstance(value, list):
        return "<an array of objects>"
    return "<an object>" if isinstance(value, dict) else "<another type>"


# ---- input ----


@open_object
class InputPart(TypedDict):
    """A part of a message or of a tool's output: text, an image or a file."""

    type: str
    text: NotRequired[str | None]
    refusal: NotRequired[str | None]
    image_url: NotRequired[str | None]
    detail: NotRequired[Literal["auto", "low", "high", "original"] | None]
    file_id: NotRequired[str | None]
    file_data: NotRequired[str | None]
    file_url: NotRequired[str | None]
    filename: NotRequired[str | None]


Parts = Annotated[
    list[InputPart], Field(max_length=MAX_PARTS, fail_fast=True), Tag("<an array of objects>")
]
PartsOrText = Annotated[Text | Parts, Discriminator(form_of)]


@open_object
class MessageItem(TypedDict):
    """A message of any role, with or without `type`."""

    role: Literal["user", "assistant", "system", "developer"]
    content: PartsOrText
    type: NotRequired[Literal["message"] | None]
    phase: NotRequired[str | None]


@open_object
class FunctionCallItem(TypedDict):
    """A call of a function in an earlier turn; `arguments` is JSON as text."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    namespace: NotRequired[str | None]


@open_object
class CustomToolCallItem(TypedDict):
    """A call of a custom tool in an earlier turn."""

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str
    namespace: NotRequired[str | None]


@open_object
class CallOutputItem(TypedDict):
    """The output of a tool. Some clients leave out the id of a call that they made themselves."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    output: PartsOrText
    call_id: NotRequired[str | None]


@open_object
class ReasoningPart(TypedDict):
    """A part of the model's reasoning, or of its summary."""

    text: NotRequired[str | None]


ReasoningParts = Annotated[list[ReasoningPart], Field(max_length=MAX_PARTS, fail_fast=True)]


@open_object
class ReasoningItem(TypedDict):
    """The model's reasoning in an earlier turn; anything of it may be absent."""

    type: Literal["reasoning"]
    summary: NotRequired[ReasoningParts | None]
    content: NotRequired[ReasoningParts | None]
    encrypted_content: NotRequired[str | None]


@open_object
class ToolSearchCallItem(TypedDict):
    """The model's search for tools, which the client runs."""

    type: Literal["tool_search_call"]
    arguments: NotRequired[JSONValue]
    call_id: NotRequired[str | None]


@open_object
class AgentMessageItem(TypedDict):
    """A message of another agent."""

    type: Literal["agent_message"]
    content: PartsOrText
    author: NotRequired[str | None]


@open_object
class OtherItem(TypedDict):
    """Any other item: a call of a hosted tool, or a type that is newer than this server."""

    type: str


_ITEMS = frozenset(
    {
        "message", "function_call", "custom_tool_call", "function_call_output",
        "custom_tool_call_output", "reasoning", "tool_search_call", "tool_search_output",
        "additional_tools", "agent_message", "configuration_update",
    }
)  # fmt: skip


def _item_kind(value: Any) -> str | None:
    """The tag of an input item. A message may have no type."""
    if not isinstance(value, dict):
        return None
    kind = value.get("type")
    if kind is None and "role" in value:
        return "<message>"
    if not isinstance(kind, str):
        return None
    if kind in ("function_call_output", "custom_tool_call_output"):
        return "<call_output>"
    if kind in ("tool_search_output", "additional_tools"):
        return "<tools>"
    return f"<{kind}>" if kind in _ITEMS else "<other>"


# ---- tools ----


@open_object
class FunctionToolParam(TypedDict):
    """A function; `defer_loading` hides it until a search has found it."""

    type: Literal["function"]
    name: Name
    description: NotRequired[str | None]
    parameters: NotRequired[JSONObject | None]
    strict: NotRequired[bool | None]
    defer_loading: NotRequired[bool | None]


@open_object
class GrammarFormat(TypedDict):
    """Text that matches a grammar."""

    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Field(min_length=1, max_length=65_536)]


InputFormat = Annotated[
    Annotated[CustomFormatText, Tag("<text>")] | Annotated[GrammarFormat, Tag("<grammar>")],
    Discriminator(type_of),
]


@open_object
class CustomToolParam(TypedDict):
    """A tool that takes text, any text unless it has a `format`."""

    type: Literal["custom"]
    name: Name
    description: NotRequired[str | None]
    format: NotRequired[InputFormat | None]
    defer_loading: NotRequired[bool | None]


MemberTool = Annotated[
    Annotated[FunctionToolParam, Tag("<function>")] | Annotated[CustomToolParam, Tag("<custom>")],
    Discriminator(type_of),
]


@open_object
class NamespaceToolParam(TypedDict):
    """Tools under one name, such as those of an MCP server."""

    type: Literal["namespace"]
    name: Name
    description: NotRequired[str | None]
    tools: Annotated[list[MemberTool], Field(max_length=MAX_TOOLS, fail_fast=True)]
    defer_loading: NotRequired[bool | None]


@open_object
class ToolSearchParam(TypedDict):
    """Lets the model search for deferred tools; the client runs the search."""

    type: Literal["tool_search"]
    execution: NotRequired[Literal["client", "server"] | None]
    description: NotRequired[str | None]
    parameters: NotRequired[JSONObject | None]


@open_object
class HostedToolParam(TypedDict):
    """A tool that OpenAI runs, such as `web_search`."""

    type: str


def _tool_kind(value: Any) -> str | None:
    kind = type_of(value)
    known = ("<function>", "<custom>", "<namespace>", "<tool_search>", None)
    return kind if kind in known else "<hosted>"


ResponsesTool = Annotated[
    Annotated[FunctionToolParam, Tag("<function>")]
    | Annotated[CustomToolParam, Tag("<custom>")]
    | Annotated[NamespaceToolParam, Tag("<namespace>")]
    | Annotated[ToolSearchParam, Tag("<tool_search>")]
    | Annotated[HostedToolParam, Tag("<hosted>")],
    Discriminator(_tool_kind),
]
ResponsesTools = Annotated[list[ResponsesTool], Field(max_length=MAX_TOOLS, fail_fast=True)]


@open_object
class ToolsItem(TypedDict):
    """Tools that are callable from here on: the result of a search, or more of them."""

    type: Literal["tool_search_output", "additional_tools"]
    tools: NotRequired[ResponsesTools | None]
    call_id: NotRequired[str | None]


@open_object
class ToolReference(TypedDict):
    """A tool by its type and, for tools of the client, its name."""

    type: str
    name: NotRequired[str | None]
    namespace: NotRequired[str | None]


@open_object
class ToolChoiceObject(TypedDict):
    """One tool that must be called, or with `allowed_tools` the tools that may be."""

    type: str
    name: NotRequired[str | None]
    namespace: NotRequired[str | None]
    mode: NotRequired[Literal["auto", "required"] | None]
    tools: NotRequired[
        Annotated[list[ToolReference], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]
        | None
    ]


ResponsesToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<a string>")]
    | Annotated[ToolChoiceObject, Tag("<an object>")],
    Discriminator(form_of),
]

# ---- text and reasoning ----


@open_object
class TextFormat(TypedDict):
    """Any text."""

    type: Literal["text"]


@open_object
class JSONObjectFormat(TypedDict):
    """Any JSON object."""

    type: Literal["json_object"]


@open_object
class JSONSchemaFormat(JSONSchema):
    """JSON that matches a schema."""

    type: Literal["json_schema"]


OutputFormatParam = Annotated[
    Annotated[TextFormat, Tag("<text>")]
    | Annotated[JSONObjectFormat, Tag("<json_object>")]
    | Annotated[JSONSchemaFormat, Tag("<json_schema>")],
    Discriminator(type_of),
]


class TextConfig(RequestFields):
    """The format of the text, and how verbose it is."""

    format: OutputFormatParam | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ReasoningConfig(RequestFields):
    """How much the model reasons, and how its reasoning is returned."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None  # older name
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: Literal["standard", "pro"] | None = None


class ConfigurationUpdate(RequestFields):
    """Settings for this answer, within the input."""

    type: Literal["configuration_update"]
    reasoning: ReasoningConfig | None = None
    text: TextConfig | None = None


ResponsesItem = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[FunctionCallItem, Tag("<function_call>")]
    | Annotated[CustomToolCallItem, Tag("<custom_tool_call>")]
    | Annotated[CallOutputItem, Tag("<call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")]
    | Annotated[ToolSearchCallItem, Tag("<tool_search_call>")]
    | Annotated[ToolsItem, Tag("<tools>")]
    | Annotated[AgentMessageItem, Tag("<agent_message>")]
    | Annotated[ConfigurationUpdate, Tag("<configuration_update>")]
    | Annotated[OtherItem, Tag("<other>")],
    Discriminator(_item_kind),
]
Items = Annotated[
    list[ResponsesItem],
    Field(min_length=1, max_length=MAX_INPUT_ITEMS, fail_fast=True),
    Tag("<an array of objects>"),
]
ResponsesInput = Annotated[Text | Items, Discriminator(form_of)]


class ResponsesCacheOptions(PromptCacheOptions):
    """Options of chats, and two that need OpenAI's own cache."""

    comparison_response_id: str | None = None  # no effect: asks for a diagnosis
    prewarm: bool | None = None  # refused if true: no output would be generated


class ResponsesRequest(SamplingFields):
    """The body of POST /v1/responses. Sampling fields that OpenAI's API lacks are vLLM's."""

    input: ResponsesInput
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    tools: ResponsesTools | None = None
    tool_choice: ResponsesToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None  # hosted ones: none
    include: Annotated[list[str], Field(max_length=32)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    background: bool | None = None
    previous_response_id: str | None = None

    # Accepted without effect
    client_metadata: JSONObject | None = None
    access_programs: JSONValue = None
    image: JSONValue = None
    prompt_cache_options: ResponsesCacheOptions | None = None


class InputTokensDetails(BaseModel):
    """The parts of the input that the prefix cache had; nothing is billed for writing to it."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(BaseModel):
    """The part of the output that is reasoning."""

    reasoning_tokens: int


class ResponseUsage(BaseModel):
    """The tokens of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseObject(BaseModel):
    """A response, or its state within a stream. It repeats the request with the values in force."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    model: str
    error: dict[str, Any] | None
    incomplete_details: dict[str, str] | None
    output: list[dict[str, Any]]
    usage: ResponseUsage | None
    background: bool
    frequency_penalty: float
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, str | None]
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    user: str | None


class ResponseEvent(BaseModel):
    """One event of a stream; its other members depend on the type."""

    model_config = ConfigDict(extra="allow")

    type: str
    sequence_number: int


class InputTokensRequest(ResponsesRequest):
    """The body of POST /v1/responses/input_tokens."""

    # Accepted without effect
    personality: Annotated[str, Field(max_length=64)] | None = None


class InputTokens(BaseModel):
    """The number of tokens that a request's prompt has."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int
