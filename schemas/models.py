"""The models resource. The fields after `owned_by` are not OpenAI's; clients of vLLM read some."""

from typing import Literal

from pydantic import BaseModel

from schemas.sampling import RequestFields


class Capabilities(BaseModel):
    """What requests can ask of a model."""

    chat: bool
    completions: bool
    embeddings: bool
    rerank: bool
    tools: bool
    images: bool


class Model(BaseModel):
    """A model that requests can name."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    root: str | None = None
    parent: str | None = None  # the model that an adapter adapts
    max_model_len: int | None = None  # prompt and answer together, in tokens
    capabilities: Capabilities
    description: str | None = None
    ready: bool = True
    error: str | None = None  # why it is not ready


class ModelList(BaseModel):
    """Every model that is loaded."""

    object: Literal["list"] = "list"
    data: list[Model]


class ModelChangeRequest(RequestFields):
    """The body of POST /v1/models/{id}/load and /unload, which may be left out."""

    stream: bool | None = None  # tell of it as it goes


class ModelProgress(BaseModel):
    """Where a load or an unload stands."""

    model: str
    object: Literal["model.progress"] = "model.progress"
    state: str  # LOADING, UNLOADING, READY, UNAVAILABLE, UNKNOWN
    running: int  # requests at work in the model, which an unload waits for
    elapsed_s: float
    done: bool  # on the last one
