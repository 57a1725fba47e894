"""The fields that chat completions and completions share: OpenAI's first, then vLLM's.

A tag such as `"<a string>"` names one member of a union; the mapping of validation errors to
OpenAI's messages reads it.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Tag
from pydantic_core import PydanticKnownError

from schemas.json_value import JSONObject, JSONValue
from schemas.response_format import Choices, Pattern, ResponseFormat, StructuredOutputsParam

_INTEGER = re.compile("0|-?[1-9][0-9]{0,18}")
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
MAX_BAD_WORDS_CHARACTERS = 4096  # in total
MAX_XARGS_BYTES = 64 * 1024  # of its JSON
MAX_CACHE_SALT_CHARACTERS = 512
OWNER_CHARACTERS = 35  # that the gateway prepends to a salt
MAX_STREAM_INTERVAL = 1024

TokenId = Annotated[int, Field(ge=0, le=INT32_MAX)]


def _number(key: Any) -> Any:
    """Read the name of a member. Refuse `01`, ` 1` and `1.0`, which pydantic itself takes for 1:
    the last of two spellings would win.
    """
    if not isinstance(key, str):
        return key
    if not _INTEGER.fullmatch(key):
        raise PydanticKnownError("int_parsing")
    return int(key)


TokenKey = Annotated[TokenId, BeforeValidator(_number)]
TokenIds = Annotated[list[TokenId], Field(max_length=1024, fail_fast=True)]
StopText = Annotated[str, Field(min_length=1, max_length=1024)]
# OpenAI allows 4; editors send more (such as Continue's autocomplete).
StopTexts = Annotated[list[StopText], Field(max_length=16, fail_fast=True)]
Stop = Annotated[StopText, Tag("<a string>")] | Annotated[StopTexts, Tag("<an array of strings>")]
# -1 and 0 (which would leave no prompt) mean: as much as fits
TruncatedTo = Annotated[int, Field(ge=-1, le=INT32_MAX)]
MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Scalar = (
    Annotated[str, Tag("<a string>")]
    | Annotated[bool, Tag("<a boolean>")]
    | Annotated[int, Tag("<an integer>")]
    | Annotated[float, Tag("<a decimal>")]
    | None
)

Int64 = Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX)]
XArgs = Annotated[
    list[Annotated[str, Field(max_length=512)] | Int64 | float],
    Field(max_length=256, fail_fast=True),
]
XArg = (
    Annotated[str, Field(max_length=4096), Tag("<a string>")]
    | Annotated[bool, Tag("<a boolean>")]
    | Annotated[Int64, Tag("<an integer>")]
    | Annotated[float, Tag("<a decimal>")]
    | Annotated[XArgs, Tag("<an array>")]
)


class RequestFields(BaseModel):
    """The base of every request: no conversions, no NaN; unknown fields are kept, not validated."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")

    __pydantic_extra__: dict[str, JSONValue]


ModelName = Annotated[
    str | None,
    Field(
        description="May be left out if only one of the models that the key may use can do this."
    ),
]


class StreamOptions(RequestFields):
    """Additional contents of a stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # pads the chunks; OpenAI's default is true, ours false
    continuous_usage_stats: bool | None = None  # vLLM's: running counts in every chunk


class PromptCacheOptions(RequestFields):
    """How long a prefix is cached; no effect, because vLLM caches prefixes itself."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Annotated[str, Field(max_length=64)] | None = None


class RepetitionDetection(RequestFields):
    """vLLM's: a pattern of tokens that is repeated `min_count` times ends the output."""

    max_pattern_size: Annotated[int, Field(ge=0, le=1024)]
    min_pattern_size: Annotated[int, Field(ge=0, le=1024)] = 0
    min_count: Annotated[int, Field(ge=2, le=1024)]


class SamplingFields(RequestFields):
    """The model, its sampling parameters and the format of the response. None: the default."""

    model: ModelName = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None  # -1: no limit
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: Stop | None = None
    seed: Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: Annotated[dict[TokenKey, Bias], Field(max_length=1024)] | None = None
    response_format: ResponseFormat | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    service_tier: (
        Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None
    ) = None

    # OpenAI's, accepted without effect on the output
    user: Annotated[str, Field(max_length=512)] | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] | None = None
    safety_identifier: Annotated[str, Field(max_length=128)] | None = None
    store: bool | None = None
    prompt_cache_key: Annotated[str, Field(max_length=512)] | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None

    # vLLM's sampling parameters
    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    use_beam_search: bool | None = None  # returns the `n` most likely outputs
    length_penalty: Annotated[float, Field(ge=-100, le=100)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    bad_words: Annotated[list[StopText], Field(max_length=128, fail_fast=True)] | None = None
    allowed_token_ids: (
        Annotated[list[TokenId], Field(min_length=1, max_length=1024, fail_fast=True)] | None
    ) = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    structured_outputs: StructuredOutputsParam | None = None
    guided_json: (
        Annotated[str, Tag("<a string>")] | Annotated[JSONObject, Tag("<an object>")] | None
    ) = None  # this and the following: older names of `structured_outputs` and its members
    guided_regex: Pattern | None = None
    guided_choice: Choices | None = None
    guided_grammar: Pattern | None = None
    guided_whitespace_pattern: Pattern | None = None
    guided_decoding_backend: Annotated[str, Field(max_length=64)] | None = None
    thinking_token_budget: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None
    repetition_detection: RepetitionDetection | None = None
    vllm_xargs: Annotated[dict[MetadataKey, XArg], Field(max_length=16)] | None = None

    # SGLang's
    regex: Pattern | None = None
    ebnf: Pattern | None = None

    # vLLM's: how prompts are tokenized, priorities, and extra fields of the response
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: TruncatedTo | None = None
    truncation_side: Literal["left", "right"] | None = None
    priority: Annotated[int, Field(ge=-INT32_MAX - 1, le=INT32_MAX)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_CACHE_SALT_CHARACTERS)] | None = (
        None
    )
    prompt_logprobs: Annotated[int, Field(ge=-1, le=20)] | None = None
    logprob_token_ids: (
        Annotated[list[TokenId], Field(min_length=1, max_length=128, fail_fast=True)] | None
    ) = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    stream_interval: Annotated[int, Field(ge=1, le=MAX_STREAM_INTERVAL)] | None = None
