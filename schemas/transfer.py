"""Messages between a decode server and a prefill server. Clients never send or get any of it."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from schemas.sampling import (
    INT32_MAX,
    MAX_CACHE_SALT_CHARACTERS,
    OWNER_CHARACTERS,
    RequestFields,
)
from schemas.token_ids import MAX_TOKEN_IDS

PromptTokenId = Annotated[int, Field(ge=0, le=INT32_MAX)]


class PrefillRequest(RequestFields):
    """The body of POST /internal/prefill: one prompt."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(min_length=1, max_length=256)]  # as a client names it
    prompt_token_ids: Annotated[
        list[PromptTokenId], Field(min_length=1, max_length=MAX_TOKEN_IDS, fail_fast=True)
    ]
    adapter: Annotated[str, Field(max_length=256)] | None = None  # of a model's LoRA adapters
    cache_salt: (
        Annotated[str, Field(max_length=MAX_CACHE_SALT_CHARACTERS + OWNER_CHARACTERS)] | None
    ) = None
    priority: Annotated[int, Field(ge=-(INT32_MAX + 1), le=INT32_MAX)] = 0


class PrefillResponse(BaseModel):
    """The place of the prompt's KV cache, and how long it stays there."""

    model_config = ConfigDict(strict=True, extra="forbid")

    digest: str  # of the prompt as it was computed, with its adapter and cache salt
    lease_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]  # from when the prompt was computed
    prefill_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]  # from the request until then
    kv_transfer_params: dict[str, JsonValue]  # of the prefill server's engine


class PrefillHealth(BaseModel):
    """The body of GET /internal/health."""

    status: str
