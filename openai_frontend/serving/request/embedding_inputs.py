"""Texts and token ids as prompts that a pooling model can read whole. Never runs the model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from openai_frontend.errors import ContextLengthExceeded, InvalidRequest
from openai_frontend.models.served_model import ServedModel
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.prompting.tokenizer import Truncation
from openai_frontend.serving.request.sampling import check_in_vocabulary, unsupported

# What the author of a client must know who sends ids of another tokenizer
VOCABULARY_HINT = (
    "Token ids must be those of the model's own tokenizer; langchain-openai sends OpenAI's, or "
    "texts with check_embedding_ctx_length=False."
)


@dataclass(frozen=True, slots=True)
class Text:
    """A text that the client sent, and where."""

    text: str
    place: str  # the field, such as `input[3]`


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A text that the client sent as the ids of its tokens, and where."""

    token_ids: list[int]
    place: str


async def tokenize_inputs(
    given: Sequence[Text | TokenIds],  # all of them texts, or all of them token ids
    model: ServedModel,
    *,
    add_special_tokens: bool = True,
    truncation: Truncation | None = None,
) -> list[Prompt]:
    """A prompt for each; raises, before any reaches the model, where one is none for it."""
    texts = [each for each in given if isinstance(each, Text)]
    if not texts:
        return [_checked(each, model, truncation) for each in given if isinstance(each, TokenIds)]
    if model.prompts is None:  # its backend tokenizes
        if not add_special_tokens:
            raise unsupported("add_special_tokens")
        return [Prompt(each.text, []) for each in texts]
    prompts = await model.tokenize_all(
        [each.text for each in texts],
        add_special_tokens=add_special_tokens,
        truncation=truncation,
        params=[each.place for each in texts],
    )
    for prompt, each in zip(prompts, texts, strict=True):
        _check_not_empty(prompt, each.place)
    return prompts


def _checked(given: TokenIds, model: ServedModel, truncation: Truncation | None) -> Prompt:
    _check_vocabulary(given, model)
    kept = given.token_ids if truncation is None else truncation.kept(given.token_ids)
    context = model.max_model_len
    if context is not None and len(kept) > context:
        message = (
            f"This model's maximum context length is {context} tokens. However, your "
            f"{given.place} resulted in {len(kept)} tokens. Please reduce the length of the input."
        )
        raise ContextLengthExceeded(message, param=given.place)
    return Prompt(text=None, token_ids=kept)


def _check_vocabulary(given: TokenIds, model: ServedModel) -> None:
    if model.vocab_size is None:
        return
    try:
        check_in_vocabulary(given.token_ids, model.vocab_size, given.place)
    except InvalidRequest as error:
        message = f"{error.message} {VOCABULARY_HINT}"
        raise InvalidRequest(message, param=given.place) from None


def _check_not_empty(prompt: Prompt, place: str) -> None:
    """A tokenizer without special tokens makes nothing of an empty text."""
    if not prompt.token_ids:
        message = f"Invalid '{place}': it holds no token for this model to read."
        raise InvalidRequest(message, param=place, code="empty_string")


def input_truncation(
    truncate_prompt_tokens: int | None, side: Literal["left", "right"] | None, model: ServedModel
) -> Truncation | None:
    """How inputs are cut; None where each must fit as it is. -1 cuts to the model's context."""
    tokens, context = truncate_prompt_tokens, model.max_model_len
    if tokens is None:
        return None
    if model.prompts is None or context is None:
        raise unsupported("truncate_prompt_tokens")
    if tokens > context:
        message = (
            "Invalid 'truncate_prompt_tokens': integer above maximum value. "
            f"Expected a value <= {context}, but got {tokens} instead."
        )
        raise InvalidRequest(
            message, param="truncate_prompt_tokens", code="integer_above_max_value"
        )
    # vLLM keeps the beginning of what it pools, as the models' own tokenizers do
    return Truncation(context if tokens < 1 else tokens, side or "right")
