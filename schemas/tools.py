"""The tools of a request, the choice among them, and calls in earlier messages."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Discriminator, Field, Tag
from typing_extensions import TypedDict

from schemas.json_value import JSONObject, open_object

# Per request; rejecting this many takes 5 ms. serving/request/tools.py limits their JSON's bytes
MAX_TOOLS = 256


# OpenAI's names, and those of MCP: dots, slashes, and twice the length
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_./-]+$")]


def _kind(value: Any) -> str | None:
    """An object's tag, by its `type`."""
    kind = value.get("type") if isinstance(value, dict) else None
    return f"<{kind}>" if isinstance(kind, str) else None


def _form(value: Any) -> str:
    return "<an object>" if isinstance(value, dict) else "<a string>"


@open_object
class FunctionDefinition(TypedDict):
    """A function that the model may call; without `parameters` it has none."""

    name: Name
    description: NotRequired[str | None]
    parameters: NotRequired[JSONObject | None]
    strict: NotRequired[bool | None]


@open_object
class ChatCompletionFunctionTool(TypedDict):
    """A tool that takes a JSON object."""

    type: Literal["function"]
    function: FunctionDefinition


@open_object
class CustomFormatText(TypedDict):
    """Any text."""

    type: Literal["text"]


@open_object
class CustomFormatGrammarGrammar(TypedDict):
    """The grammar of the input."""

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Field(min_length=1, max_length=65_536)]


@open_object
class CustomFormatGrammar(TypedDict):
    """Text that matches a grammar."""

    type: Literal["grammar"]
    grammar: CustomFormatGrammarGrammar


CustomFormat = Annotated[
    Annotated[CustomFormatText, Tag("<text>")] | Annotated[CustomFormatGrammar, Tag("<grammar>")],
    Discriminator(_kind),
]


@open_object
class CustomTool(TypedDict):
    """A tool that takes text, any text unless it has a `format`."""

    name: Name
    description: NotRequired[str | None]
    format: NotRequired[CustomFormat | None]


@open_object
class ChatCompletionCustomTool(TypedDict):
    """A tool that takes text."""

    type: Literal["custom"]
    custom: CustomTool


ChatCompletionTool = Annotated[
    Annotated[ChatCompletionFunctionTool, Tag("<function>")]
    | Annotated[ChatCompletionCustomTool, Tag("<custom>")],
    Discriminator(_kind),
]
ChatCompletionTools = Annotated[
    list[ChatCompletionTool], Field(max_length=MAX_TOOLS, fail_fast=True)
]
Functions = Annotated[list[FunctionDefinition], Field(max_length=MAX_TOOLS, fail_fast=True)]


@open_object
class Named(TypedDict):
    """A tool by its name."""

    name: str


@open_object
class NamedToolChoice(TypedDict):
    """The model must call this function."""

    type: Literal["function"]
    function: Named


@open_object
class NamedToolChoiceCustom(TypedDict):
    """The model must call this custom tool."""

    type: Literal["custom"]
    custom: Named


NamedTool = Annotated[
    Annotated[NamedToolChoice, Tag("<function>")]
    | Annotated[NamedToolChoiceCustom, Tag("<custom>")],
    Discriminator(_kind),
]


@open_object
class AllowedTools(TypedDict):
    """The tools that the model may call (`auto`), or of which it must call one (`required`)."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


@open_object
class AllowedToolChoice(TypedDict):
    """Limits the choice to some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


_ToolChoiceObject = Annotated[
    Annotated[NamedToolChoice, Tag("<function>")]
    | Annotated[NamedToolChoiceCustom, Tag("<custom>")]
    | Annotated[AllowedToolChoice, Tag("<allowed_tools>")],
    Discriminator(_kind),
]
ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<a string>")]
    | Annotated[_ToolChoiceObject, Tag("<an object>")],
    Discriminator(_form),
]
FunctionChoice = Annotated[
    Annotated[Literal["none", "auto"], Tag("<a string>")] | Annotated[Named, Tag("<an object>")],
    Discriminator(_form),
]


Arguments = Annotated[str, Tag("<a string>")] | Annotated[JSONObject, Tag("<an object>")]


@open_object
class FunctionCallParam(TypedDict):
    """A function called in an earlier message; `arguments` is JSON as text, or the object.

    Any text is accepted: models write text that is not JSON, and clients send it back.
    """

    name: str
    arguments: NotRequired[Arguments | None]


@open_object
class CustomCallParam(TypedDict):
    """A custom tool called in an earlier message."""

    name: str
    input: str


@open_object
class ChatCompletionMessageFunctionToolCallParam(TypedDict):
    """A function call in an earlier message."""

    id: str
    type: Literal["function"]
    function: FunctionCallParam


@open_object
class ChatCompletionMessageCustomToolCallParam(TypedDict):
    """A custom tool call in an earlier message."""

    id: str
    type: Literal["custom"]
    custom: CustomCallParam


ChatCompletionMessageToolCallParam = Annotated[
    Annotated[ChatCompletionMessageFunctionToolCallParam, Tag("<function>")]
    | Annotated[ChatCompletionMessageCustomToolCallParam, Tag("<custom>")],
    Discriminator(_kind),
]
