"""The tools that a request offers, and how it wants them chosen."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Discriminator, Field, Tag, with_config
from typing_extensions import TypedDict

# Of one request, whose refusal takes 5 ms. serving/request/tools.py limits the bytes of their JSON
MAX_TOOLS = 256

_STRICT = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")

# OpenAI's names, and those of MCP: dots, slashes, and twice the length
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_./-]+$")]


def _kind(value: Any) -> str | None:
    """An object's tag, by its `type`."""
    kind = value.get("type") if isinstance(value, dict) else None
    return f"<{kind}>" if isinstance(kind, str) else None


def _form(value: Any) -> str:
    return "<an object>" if isinstance(value, dict) else "<a string>"


@with_config(_STRICT)
class FunctionDefinition(TypedDict):
    """A function that the model may call; without `parameters` it takes none."""

    name: Name
    description: NotRequired[str | None]
    parameters: NotRequired[dict[str, Any] | None]
    strict: NotRequired[bool | None]


@with_config(_STRICT)
class ChatCompletionFunctionTool(TypedDict):
    """A tool that takes a JSON object."""

    type: Literal["function"]
    function: FunctionDefinition


@with_config(_STRICT)
class CustomFormatText(TypedDict):
    """Any text."""

    type: Literal["text"]


@with_config(_STRICT)
class CustomFormatGrammarGrammar(TypedDict):
    """What the input must be."""

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Field(min_length=1, max_length=65_536)]


@with_config(_STRICT)
class CustomFormatGrammar(TypedDict):
    """Text that a grammar describes."""

    type: Literal["grammar"]
    grammar: CustomFormatGrammarGrammar


CustomFormat = Annotated[
    Annotated[CustomFormatText, Tag("<text>")] | Annotated[CustomFormatGrammar, Tag("<grammar>")],
    Discriminator(_kind),
]


@with_config(_STRICT)
class CustomTool(TypedDict):
    """A tool that takes text, of any form unless `format` says one."""

    name: Name
    description: NotRequired[str | None]
    format: NotRequired[CustomFormat | None]


@with_config(_STRICT)
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


@with_config(_STRICT)
class Named(TypedDict):
    """A tool by its name."""

    name: str


@with_config(_STRICT)
class NamedToolChoice(TypedDict):
    """This function must be called."""

    type: Literal["function"]
    function: Named


@with_config(_STRICT)
class NamedToolChoiceCustom(TypedDict):
    """This custom tool must be called."""

    type: Literal["custom"]
    custom: Named


NamedTool = Annotated[
    Annotated[NamedToolChoice, Tag("<function>")]
    | Annotated[NamedToolChoiceCustom, Tag("<custom>")],
    Discriminator(_kind),
]


@with_config(_STRICT)
class AllowedTools(TypedDict):
    """Those of the offered tools that may be called, or of which one must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


@with_config(_STRICT)
class AllowedToolChoice(TypedDict):
    """A choice among some of the tools."""

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


Arguments = Annotated[str, Tag("<a string>")] | Annotated[dict[str, Any], Tag("<an object>")]


@with_config(_STRICT)
class FunctionCallParam(TypedDict):
    """The function that an earlier answer called; `arguments` is JSON as text, or the object.

    Any text passes: models write some that is not JSON, and clients send it back.
    """

    name: str
    arguments: NotRequired[Arguments | None]


@with_config(_STRICT)
class CustomCallParam(TypedDict):
    """The custom tool that an earlier answer called."""

    name: str
    input: str


@with_config(_STRICT)
class ChatCompletionMessageFunctionToolCallParam(TypedDict):
    """A function call that an earlier answer made."""

    id: str
    type: Literal["function"]
    function: FunctionCallParam


@with_config(_STRICT)
class ChatCompletionMessageCustomToolCallParam(TypedDict):
    """A custom tool's call that an earlier answer made."""

    id: str
    type: Literal["custom"]
    custom: CustomCallParam


ChatCompletionMessageToolCallParam = Annotated[
    Annotated[ChatCompletionMessageFunctionToolCallParam, Tag("<function>")]
    | Annotated[ChatCompletionMessageCustomToolCallParam, Tag("<custom>")],
    Discriminator(_kind),
]
