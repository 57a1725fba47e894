"""The chat completions resource: request, complete response, and the chunks of a stream."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, Field, Tag
from typing_extensions import TypedDict

from schemas.json_value import JSONValue, open_object
from schemas.logprobs import ChoiceLogprobs, PromptLogprobs
from schemas.moderations import ModerationResult
from schemas.sampling import INT32_MAX, RequestFields, SamplingFields, Scalar
from schemas.tools import (
    MAX_TOOLS,
    ChatCompletionMessageToolCallParam,
    ChatCompletionTools,
    FunctionCallParam,
    FunctionChoice,
    Functions,
    ToolChoice,
)
from schemas.usage import CompletionUsage

FinishReason = Literal["stop", "length", "tool_calls", "function_call", "content_filter"]


@open_object
class ImageURL(TypedDict):
    """An image as a base64-encoded data URL, and how much of its detail the model needs."""

    url: str
    detail: NotRequired[Literal["auto", "low", "high", "original"] | None]


@open_object
class InputAudio(TypedDict):
    """An audio file as base64."""

    data: str
    format: Literal["wav", "mp3", "flac", "ogg"]


@open_object
class AudioURL(TypedDict):
    """An audio file as a base64-encoded data URL."""

    url: str


ContentType = Literal[
    "text", "refusal", "image_url", "input_audio", "file",
    "audio_url", "video_url", "image_embeds", "audio_embeds", "video_embeds", "prompt_embeds",
]  # fmt: skip


# Messages are plain dicts from the wire to the chat template, so their types are dicts too.
@open_object
class ChatCompletionContentPartParam(TypedDict):
    """A part of a message's content: a text, an image or audio. Others are refused by name."""

    type: ContentType
    text: NotRequired[str]
    refusal: NotRequired[str]
    image_url: NotRequired[
        Annotated[str, Tag("<a string>")] | Annotated[ImageURL, Tag("<an object>")] | None
    ]
    input_audio: NotRequired[InputAudio | None]
    audio_url: NotRequired[  # vLLM's
        Annotated[str, Tag("<a string>")] | Annotated[AudioURL, Tag("<an object>")] | None
    ]
    uuid: NotRequired[Annotated[str, Field(max_length=256)] | None]  # vLLM's, names the media


# May be empty for the assistant; serving/request/template_inputs.py rejects that for other roles
ContentParts = Annotated[
    list[ChatCompletionContentPartParam], Field(max_length=10_000, fail_fast=True)
]
Content = Annotated[str, Tag("<a string>")] | Annotated[ContentParts, Tag("<an array of objects>")]


@open_object
class ChatCompletionMessageParam(TypedDict):
    """One message of the conversation, of any role."""

    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: NotRequired[Content | None]
    name: NotRequired[str | None]
    refusal: NotRequired[str | None]
    tool_calls: NotRequired[
        Annotated[
            list[ChatCompletionMessageToolCallParam], Field(max_length=MAX_TOOLS, fail_fast=True)
        ]
        | None
    ]
    function_call: NotRequired[FunctionCallParam | None]
    tool_call_id: NotRequired[str | None]
    annotations: NotRequired[list[JSONValue] | None]  # of an earlier response
    reasoning_content: NotRequired[str | None]
    reasoning: NotRequired[str | None]


@open_object
class PredictionContent(TypedDict):
    """The expected output. Accepted without effect: it would only make the response faster."""

    type: Literal["content"]
    content: Content


Document = Annotated[dict[str, str], Field(min_length=1, max_length=16)]


ModerationMode = Literal["score", "block"]


class ModerationStagePolicy(RequestFields):
    """Whether flagged text is only reported."""

    mode: ModerationMode


class ModerationPolicyParam(RequestFields):
    """Null for a stage: `score`."""

    input: ModerationStagePolicy | None = None
    output: ModerationStagePolicy | None = None


class ModerationParam(RequestFields):
    """The model that sees the prompt and the output, and what it may do."""

    model: Annotated[str, Field(min_length=1)]
    policy: ModerationPolicyParam | None = None


class ChatCompletionRequest(SamplingFields):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[
        list[ChatCompletionMessageParam],
        Field(min_length=1, max_length=100_000, fail_fast=True),
    ]
    max_completion_tokens: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None  # -1: no limit
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    verbosity: Literal["low", "medium", "high"] | None = None
    prediction: PredictionContent | None = None
    modalities: Annotated[list[Literal["text", "audio"]], Field(max_length=2)] | None = None
    tools: ChatCompletionTools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Functions | None = None  # deprecated, like `function_call`
    function_call: FunctionChoice | None = None
    moderation: ModerationParam | None = None

    # vLLM's
    include_reasoning: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    echo: bool | None = None
    documents: Annotated[list[Document], Field(max_length=256, fail_fast=True)] | None = None
    chat_template_kwargs: (
        Annotated[dict[Annotated[str, Field(max_length=64)], Scalar], Field(max_length=64)] | None
    ) = None


class FunctionCall(BaseModel):
    """The function that the model calls; `arguments` is JSON as text."""

    name: str
    arguments: str


class CustomCall(BaseModel):
    """The custom tool that the model calls."""

    name: str
    input: str


class ChatCompletionMessageFunctionToolCall(BaseModel):
    """A call of a function."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class ChatCompletionMessageCustomToolCall(BaseModel):
    """A call of a custom tool."""

    id: str
    type: Literal["custom"]
    custom: CustomCall


class ChatCompletionMessage(BaseModel):
    """The model's message. Fields with a default are absent if they are empty.

    `content` is null if the model only called tools. `reasoning_content` and `reasoning` have the
    same value, because clients read one or the other.
    """

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    annotations: list[Any]
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: (
        list[ChatCompletionMessageFunctionToolCall | ChatCompletionMessageCustomToolCall] | None
    ) = None
    function_call: FunctionCall | None = None


class ChatCompletionChoice(BaseModel):
    """One choice. `token_ids` is vLLM's, and absent unless requested."""

    index: int
    message: ChatCompletionMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: FinishReason
    token_ids: list[int] | None = None


class ModeratedText(ModerationResult):
    """The scores of the prompt, or of one choice."""

    type: Literal["moderation_result"]
    model: str


class ModerationResults(BaseModel):
    """One result for the prompt, or for each choice with text."""

    type: Literal["moderation_results"]
    model: str
    results: list[ModeratedText]


class ModerationError(BaseModel):
    """The moderation failed, and the request continued without it."""

    type: Literal["error"]
    code: str
    message: str


class ChatModeration(BaseModel):
    """The outcome of `moderation`."""

    input: ModerationResults | ModerationError
    output: ModerationResults | ModerationError


class ChatCompletion(BaseModel):
    """A complete response. Fields with a default are absent unless requested."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: Literal["default"] = "default"
    choices: list[ChatCompletionChoice]
    usage: CompletionUsage
    metadata: dict[str, str] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    moderation: ChatModeration | None = None


class ChoiceDeltaFunctionCall(BaseModel):
    """The function's name once, then pieces of its arguments."""

    name: str = ""
    arguments: str = ""


class ChoiceDeltaCustomCall(BaseModel):
    """The custom tool's name once, then pieces of its input."""

    name: str = ""
    input: str = ""


class ChoiceDeltaToolCall(BaseModel):
    """A chunk's part of one call; `id`, `type` and the name come only in the first."""

    index: int
    id: str = ""
    type: Literal["function", "custom"] = "function"
    function: ChoiceDeltaFunctionCall | None = None
    custom: ChoiceDeltaCustomCall | None = None


class ChoiceDelta(BaseModel):
    """A chunk's part of a message; fields without a new part are absent."""

    role: Literal["assistant"] = "assistant"
    content: str | None = ""  # null in the first chunk if the model may call tools
    reasoning_content: str = ""
    reasoning: str = ""
    tool_calls: list[ChoiceDeltaToolCall] | None = None
    function_call: ChoiceDeltaFunctionCall | None = None


class ChatCompletionChunkChoice(BaseModel):
    """A chunk's part of one choice; `logprobs` are of the chunk's own tokens."""

    index: int
    delta: ChoiceDelta
    logprobs: ChoiceLogprobs | None
    finish_reason: FinishReason | None
    token_ids: list[int] | None = None


class ChatCompletionChunk(BaseModel):
    """One event of a stream; `usage` is absent unless requested."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: Literal["default"] = "default"
    choices: list[ChatCompletionChunkChoice]
    prompt_token_ids: list[int] | None = None
    obfuscation: str | None = None
    usage: CompletionUsage | None = None
    moderation: ChatModeration | None = None  # on one chunk, after the last choice
