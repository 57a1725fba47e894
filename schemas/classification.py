"""Classification in vLLM's format."""

from typing import Literal

from pydantic import BaseModel

from schemas.embeddings import EmbeddingUsage, PooledRequest


class ClassificationRequest(PooledRequest):
    """The body of POST /v1/classify and /classify."""

    use_activation: bool | None = None  # null: as the model configures


class ClassScores(BaseModel):
    """The scores of one input: one for each of the model's labels, in their order."""

    index: int
    label: str  # of the highest score
    probs: list[float]
    num_classes: int


class ClassificationResponse(BaseModel):
    """The scores, in the order of the inputs."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[ClassScores]
    usage: EmbeddingUsage
