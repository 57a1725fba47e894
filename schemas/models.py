"""The models resource. The fields after `owned_by` are not OpenAI's; clients of vLLM read some."""

from typing import Literal

from pydantic import BaseModel


class Model(BaseModel):
    """A model that requests can name."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    max_model_len: int | None = None
    description: str | None = None
    ready: bool = True
    error: str | None = None  # why it is not ready


class ModelList(BaseModel):
    """Every model that is loaded."""

    object: Literal["list"] = "list"
    data: list[Model]
