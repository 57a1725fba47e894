"""Requests to pooling models and their results: embeddings, scores of classes and of pairs.

Like `generation.py`, the interface between serving and tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from openai_frontend.media.modalities import ImageInput

# Inputs in one Triton request: it amortizes the cost of a request, and an engine that gets several
# such requests always has the next one when it ends one
MAX_BATCH_INPUTS = 32


PoolingTask = Literal["embed", "classify", "token_embed", "token_classify", "sparse_embed"]
# Tasks with a vector for each token of the input
TOKEN_TASKS: frozenset[PoolingTask] = frozenset({"token_embed", "token_classify"})


@dataclass(slots=True, kw_only=True)
class EmbedRequest:
    """One input, one vector: its embedding, or the scores of classes; of `TOKEN_TASKS`, one for
    each of its tokens. Not frozen, as `SamplingParams`.
    """

    request_id: str
    prompt: str | None = None
    prompt_token_ids: Sequence[int] | None = None
    images: Sequence[ImageInput] = ()  # in the order of their placeholders in the prompt
    cache_salt: str | None = None  # this and the next: as in GenerationRequest
    cache_owner: str | None = None
    dimensions: int | None = None  # None: the model's own
    task: PoolingTask = "embed"
    use_activation: bool | None = None  # after the last layer; None: as the model configures
    param: str | None = None  # the client's field, for errors about one of several inputs


@dataclass(slots=True, eq=False)
class SparseVector:
    """The numbers of a vector that are not 0, and their positions, as NumPy arrays."""

    indices: Any  # of any integer type, in any order
    values: Any  # float32


@dataclass(slots=True)
class EmbeddingResult:
    """`embedding` is a buffer of little-endian float32; of "classify", one score per class."""

    embedding: memoryview
    prompt_tokens: int
    width: int | None = None  # numbers of each of several vectors, of `TOKEN_TASKS`
    sparse: SparseVector | None = None  # of "sparse_embed"; `embedding` may be empty then


@dataclass(slots=True, kw_only=True)
class ScorePairRequest:
    """A query and a document in one sequence, for a cross-encoder."""

    request_id: str
    prompt_token_ids: Sequence[int]
    token_type_ids: Sequence[int] | None = None  # 0 for the query's tokens, 1 for the document's
    cache_salt: str | None = None  # this and the next: as in GenerationRequest
    cache_owner: str | None = None
    param: str | None = None  # the document's field, for errors about one of several pairs


@dataclass(slots=True)
class ScoreResult:
    """The relevance of the document, after the model's activation."""

    score: float
    prompt_tokens: int
