"""The chat completions resource: request, whole answer, and the chunks of a streamed one."""

from typing import Annotated, Literal, NotRequired

from pydantic import BaseModel, ConfigDict, Field, Tag, with_config
from typing_extensions import TypedDict

from schemas.sampling import INT32_MAX, SamplingFields
from schemas.usage import CompletionUsage

FinishReason = Literal["stop", "length"]
Scalar = (
    Annotated[str, Tag("<a string>")]
    | Annotated[bool, Tag("<a boolean>")]
    | Annotated[int, Tag("<an integer>")]
    | Annotated[float, Tag("<a decimal>")]
    | None
)

_STRICT = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")


# Messages are plain dicts from the wire to the chat template, so their types are dicts too.
@with_config(_STRICT)
class ChatCompletionContentPartParam(TypedDict):
    """A piece of a message's content. Only text can be honoured so far."""

    type: Literal["text", "refusal", "image_url", "input_audio", "video_url", "file"]
    text: NotRequired[str]
    refusal: NotRequired[str]


@with_config(_STRICT)
class FunctionParam(TypedDict):
    """The function that an earlier answer called; `arguments` is JSON as text."""

    name: str
    arguments: str


@with_config(_STRICT)
class ChatCompletionMessageToolCallParam(TypedDict):
    """A call that an earlier answer made."""

    id: str
    type: Literal["function"]
    function: FunctionParam


ContentParts = Annotated[
    list[ChatCompletionContentPartParam], Field(min_length=1, max_length=10_000, fail_fast=True)
]
Content = Annotated[str, Tag("<a string>")] | Annotated[ContentParts, Tag("<an array of objects>")]


@with_config(_STRICT)
class ChatCompletionMessageParam(TypedDict):
    """One message of the conversation so far, of any role."""

    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: NotRequired[Content | None]
    name: NotRequired[str | None]
    refusal: NotRequired[str | None]
    tool_calls: NotRequired[
        Annotated[list[ChatCompletionMessageToolCallParam], Field(max_length=128, fail_fast=True)]
        | None
    ]
    function_call: NotRequired[FunctionParam | None]
    tool_call_id: NotRequired[str | None]
    reasoning_content: NotRequired[str | None]
    reasoning: NotRequired[str | None]


class ChatCompletionRequest(SamplingFields):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[
        list[ChatCompletionMessageParam],
        Field(min_length=1, max_length=100_000, fail_fast=True),
    ]
    max_completion_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )

    # vLLM's
    add_generation_prompt: bool | None = None
    chat_template_kwargs: (
        Annotated[dict[Annotated[str, Field(max_length=64)], Scalar], Field(max_length=64)] | None
    ) = None


class ChatCompletionMessage(BaseModel):
    """What the model said."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: str | None = None


class ChatCompletionChoice(BaseModel):
    """One answer."""

    index: int
    message: ChatCompletionMessage
    logprobs: None = None
    finish_reason: FinishReason


class ChatCompletion(BaseModel):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatCompletionChoice]
    usage: CompletionUsage


class ChoiceDelta(BaseModel):
    """What a chunk adds to a message; a field that it does not add is absent."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatCompletionChunkChoice(BaseModel):
    """What a chunk adds to one answer."""

    index: int
    delta: ChoiceDelta
    logprobs: None = None
    finish_reason: FinishReason | None = None


class ChatCompletionChunk(BaseModel):
    """One event of a streamed answer; `usage` is absent unless the request asked for it."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatCompletionChunkChoice]
    usage: CompletionUsage | None = None
