"""The embeddings resource: OpenAI's fields first, then the supported fields of vLLM."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, Tag

from schemas.sampling import INT32_MAX, ModelName, RequestFields, TokenId
from schemas.token_ids import MAY_BE_LONG
from schemas.tokenization import Messages, TemplateKwargs

# The number of inputs is limited elsewhere: a union would lose the message of a limit here.
InputTexts = Annotated[list[str], Field(min_length=1, fail_fast=True)]
InputTokens = Annotated[list[TokenId], Field(min_length=1, fail_fast=True), MAY_BE_LONG]
InputTokenLists = Annotated[list[InputTokens], Field(min_length=1, fail_fast=True)]
Input = (
    Annotated[str, Tag("<a string>")]
    | Annotated[InputTexts, Tag("<an array of strings>")]
    | Annotated[InputTokens, Tag("<an array of integers>")]
    | Annotated[InputTokenLists, Tag("<an array of arrays of integers>")]
)


class PooledRequest(RequestFields):
    """The inputs of a pooling model, in OpenAI's form or vLLM's."""

    input: Input | None = None  # required without `messages`
    model: ModelName = None
    user: Annotated[str, Field(max_length=512)] | None = None

    # vLLM's
    messages: Messages | None = None  # one conversation, which may have images
    add_generation_prompt: bool | None = None  # this and the next two only with `messages`
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None
    truncation_side: Literal["left", "right"] | None = None


class EmbeddingRequest(PooledRequest):
    """The body of POST /v1/embeddings."""

    dimensions: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    # Ours; None: dense
    output_types: (
        Annotated[list[Literal["dense", "sparse"]], Field(min_length=1, max_length=2)] | None
    ) = None


class TextsEmbedRequest(RequestFields):
    """The body of POST /embed_sparse in text-embeddings-inference's format."""

    inputs: Input
    model: ModelName = None
    truncate: bool | None = None
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = None


class SparseEmbedding(BaseModel):
    """The numbers of a vector that are not 0, by ascending index."""

    indices: list[int]
    values: list[float]


class SparseValue(BaseModel):
    """An entry of a sparse vector in text-embeddings-inference's format."""

    index: int
    value: float


class Embedding(BaseModel):
    """One input's vector: numbers, or their little-endian float32 bytes in base64; a list of
    vectors from a model that has only vectors of tokens.
    """

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | list[list[float]] | str


class TypedEmbedding(BaseModel):
    """One input's vectors, if `output_types` asks for sparse ones."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | list[list[float]] | str | None = None  # absent unless requested
    sparse_embedding: SparseEmbedding


class EmbeddingUsage(BaseModel):
    """Input tokens; there are no output tokens."""

    prompt_tokens: int
    total_tokens: int


class CreateEmbeddingResponse(BaseModel):
    """The vectors, in the order of the inputs."""

    object: Literal["list"] = "list"
    data: list[Embedding] | list[TypedEmbedding]
    model: str
    usage: EmbeddingUsage
