"""What clients are told of a model. Plain data, made anew for each who asks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What requests can ask of a model."""

    chat: bool = False
    completions: bool = False
    embeddings: bool = False
    rerank: bool = False
    tools: bool = False
    images: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What clients are told of a model."""

    name: str
    created: int  # Unix time at which it became ready
    owned_by: str
    ready: bool
    max_model_len: int | None = None  # prompt and answer together, in tokens
    root: str | None = None  # the model whose weights it has; its own name unless it says
    parent: str | None = None  # the model that an adapter adapts
    stands_for: str | None = None  # the listed model whose alias or version this is
    capabilities: Capabilities = Capabilities()
    description: str | None = None
    error: str | None = None  # why it cannot serve
