"""Adapters that come and go: vLLM's requests, though no client says where an adapter lies."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from schemas.sampling import RequestFields

_Name = Annotated[str, Field(max_length=512)]


class LoadLoRAAdapterRequest(RequestFields):
    """The body of POST /v1/load_lora_adapter."""

    lora_name: _Name  # the adapter's, or `base:adapter`
    model: _Name | None = None  # the base; may be left out where one model alone has the adapter
    lora_path: Annotated[str, Field(max_length=4096)] | None = None  # the name again, or nothing
    load_inplace: bool | None = None  # what has changed is always loaded anew


class UnloadLoRAAdapterRequest(RequestFields):
    """The body of POST /v1/unload_lora_adapter."""

    lora_name: _Name
    model: _Name | None = None


class AdapterUnloaded(BaseModel):
    """The adapter is a model no more."""

    id: str
    object: Literal["model"] = "model"
    deleted: Literal[True] = True
