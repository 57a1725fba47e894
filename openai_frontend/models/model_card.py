"""The description of a model for clients."""

from dataclasses import dataclass
from typing import Literal

from openai_frontend.model_facts import OTHER_BACKEND, ModelFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """One model that requests can name. Plain data, created for each request."""

    name: str
    created: int  # Unix time at which it became ready
    ready: bool
    facts: ModelFacts = OTHER_BACKEND
    root: str | None = None  # the model's name in Triton, or the adapter's name
    parent: str | None = None  # the base model of an adapter
    alias_of: str | None = None  # the listed model whose alias or version this is
    capabilities: frozenset[str] = frozenset()  # of `schemas.models.Capabilities`
    error: str | None = None  # why it cannot serve
    # If it is ready: it sleeps, or is being woken, and a request waits for that
    present: Literal["loaded", "sleeping", "loading"] = "loaded"
    absent: Literal["loading", "unloaded", "failed"] = "failed"  # why, if it is not ready
    max_output_tokens: int | None = None  # of one answer
    loads_on_demand: bool = False  # it is not loaded, and a request loads it
