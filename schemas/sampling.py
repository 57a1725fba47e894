"""The fields that chat completions and completions share: OpenAI's first, then vLLM's.

A tag such as `"<a string>"` names one member of a union; the mapping of validation errors to
OpenAI's messages reads it.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, Tag

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

TokenId = Annotated[int, Field(ge=0, le=INT32_MAX)]
StopText = Annotated[str, Field(min_length=1, max_length=1024)]
# OpenAI takes 4; editors send more (Continue's autocomplete for one).
StopTexts = Annotated[list[StopText], Field(max_length=16, fail_fast=True)]
Stop = Annotated[StopText, Tag("<a string>")] | Annotated[StopTexts, Tag("<an array of strings>")]
MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]


class RequestFields(BaseModel):
    """How every request is read: no conversions, no NaN; unknown fields are kept, not judged."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")


class StreamOptions(RequestFields):
    """What a stream carries besides text."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # the stream carries no padding either way
    continuous_usage_stats: bool | None = None  # vLLM's: counts so far on every chunk


class SamplingFields(RequestFields):
    """Which model answers, how, and in what form. None is the model's default."""

    model: str
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: Stop | None = None
    seed: Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    # OpenAI's, accepted without effect
    user: Annotated[str, Field(max_length=512)] | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] | None = None
    safety_identifier: Annotated[str, Field(max_length=128)] | None = None
    service_tier: Literal["auto", "default"] | None = None

    # vLLM's
    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=1024, fail_fast=True)] | None = None
