"""Tokenization, detokenization and rendered prompts: vLLM's resources; OpenAI has none."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from schemas.chat_completions import ChatCompletionMessageParam
from schemas.json_value import JSONObject
from schemas.sampling import ModelName, RequestFields, Scalar, TokenId
from schemas.token_ids import MAX_TOKEN_IDS, MAY_BE_LONG
from schemas.tools import MAX_TOOLS

Messages = Annotated[
    list[ChatCompletionMessageParam], Field(min_length=1, max_length=100_000, fail_fast=True)
]
TemplateKwargs = Annotated[dict[Annotated[str, Field(max_length=64)], Scalar], Field(max_length=64)]
Tools = Annotated[list[JSONObject], Field(max_length=MAX_TOOLS, fail_fast=True)]


UncountedMedia = Annotated[
    list[str] | None,
    Field(
        description="Images and audio that count as their placeholder, because only the engine "
        "knows how many tokens they have."
    ),
]


class TokenizeRequest(RequestFields):
    """The body of POST /tokenize: a text or a chat; fields after `messages` are only for chats."""

    model: ModelName = None
    prompt: str | None = None
    add_special_tokens: bool | None = None  # default: true for a text, false for a chat
    return_token_strs: bool | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None


class TokenizeResponse(BaseModel):
    """The tokens, even if they exceed the model's context."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str | None] | None = None  # as in the vocabulary
    uncounted_media: UncountedMedia = None


class DetokenizeRequest(RequestFields):
    """The body of POST /detokenize."""

    model: ModelName = None
    tokens: Annotated[list[TokenId], Field(max_length=MAX_TOKEN_IDS, fail_fast=True), MAY_BE_LONG]


class DetokenizeResponse(BaseModel):
    """The text, including special tokens."""

    prompt: str


class RenderedPrompt(BaseModel):
    """A request as the model receives it: vLLM's GenerateRequest, the body of POST
    /inference/v1/generate of vLLM's server. The last four fields are not vLLM's; its clients
    ignore them.
    """

    request_id: str
    token_ids: list[int]
    token_offsets: None = None
    features: None = None  # no images, no audio
    content_parts: None = None
    # fields that differ from the engine's defaults
    sampling_params: Annotated[dict[str, Any], Field(description="vLLM's SamplingParams.")]
    model: str
    reasoning_ended: Annotated[
        bool | None, Field(description="True: structured outputs apply from the first token on.")
    ] = None
    reasoning_parser_kwargs: None = None
    return_token_ids: None = None
    output_mode: Literal["tokens"] = "tokens"
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    cache_salt: str | None = None
    priority: int = 0
    kv_transfer_params: None = None
    ec_transfer_params: None = None
    prompt: Annotated[str, Field(description="The text of the tokens.")]
    count: Annotated[int, Field(description="The number of tokens.")]
    max_model_len: int | None
    uncounted_media: UncountedMedia = None
