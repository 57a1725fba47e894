"""Pooling in vLLM's format: any task of a pooling model, among them vectors of tokens."""

from typing import Literal

from pydantic import BaseModel

from schemas.embeddings import EmbeddingRequest, EmbeddingUsage


class PoolingRequest(EmbeddingRequest):
    """The body of POST /v1/pooling and /pooling."""

    # None: the first of these that the model has
    task: Literal["embed", "classify", "token_embed", "token_classify"] | None = None
    use_activation: bool | None = None  # None: as the model configures


class PooledData(BaseModel):
    """The result of one input: a vector, one for each token, or their little-endian float32 bytes
    in base64.
    """

    index: int
    object: Literal["pooling"] = "pooling"
    data: list[float] | list[list[float]] | str


class PoolingResponse(BaseModel):
    """The results, in the order of the inputs."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[PooledData]
    usage: EmbeddingUsage
