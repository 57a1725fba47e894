"""Texts and token ids as prompts for embedding models and cross-encoders."""

from collections.abc import Sequence
from dataclasses import dataclass

from openai_frontend.errors import ContextLengthExceeded, InvalidRequest
from openai_frontend.generation import EmbedRequest
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.prompting.tokenizer import Truncation
from openai_frontend.serving.admission.model import ServingModel
from openai_frontend.serving.request.sampling import check_in_vocabulary, unsupported

# For authors of clients that send ids of another tokenizer.
VOCABULARY_HINT = (
    "Token ids must come from the model's own tokenizer. langchain-openai sends ids of "
    "OpenAI's; with check_embedding_ctx_length=False it sends text."
)


@dataclass(frozen=True, slots=True)
class Text:
    """A text and its request field."""

    text: str
    param: str  # such as `input[3]`


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Token ids and their request field."""

    token_ids: list[int]
    param: str


async def tokenize_inputs(
    inputs: Sequence[Text | TokenIds],  # only texts, or only token ids
    model: ServingModel,
    *,
    add_special_tokens: bool = True,
    truncation: Truncation | None = None,
) -> list[Prompt]:
    """A prompt for each input. Raises InvalidRequest for one that the model cannot read."""
    texts = [each for each in inputs if isinstance(each, Text)]
    if not texts:
        return [_checked(each, model, truncation) for each in inputs if isinstance(each, TokenIds)]
    if model.prompts is None:  # the backend tokenizes
        if not add_special_tokens:
            raise unsupported("add_special_tokens")
        return [Prompt(each.text, []) for each in texts]
    prompts = await model.tokenize_all(
        [each.text for each in texts],
        add_special_tokens=add_special_tokens,
        truncation=truncation,
        params=[each.param for each in texts],
    )
    for prompt, each in zip(prompts, texts, strict=True):
        _check_not_empty(prompt, each.param)
    return prompts


def _checked(given: TokenIds, model: ServingModel, truncation: Truncation | None) -> Prompt:
    _check_vocabulary(given, model)
    kept = given.token_ids if truncation is None else truncation.kept(given.token_ids)
    context = model.max_model_len
    if context is not None and len(kept) > context:
        message = (
            f"This model's maximum context length is {context} tokens. However, your "
            f"{given.param} resulted in {len(kept)} tokens. Please reduce the length of the input."
        )
        raise ContextLengthExceeded(message, param=given.param)
    return Prompt(text=None, token_ids=kept)


def _check_vocabulary(given: TokenIds, model: ServingModel) -> None:
    if model.vocab_size is None:
        return
    try:
        check_in_vocabulary(given.token_ids, model.vocab_size, given.param)
    except InvalidRequest as error:
        message = f"{error.message} {VOCABULARY_HINT}"
        raise InvalidRequest(message, param=given.param) from None


def _check_not_empty(prompt: Prompt, param: str) -> None:
    """Tokenizers without special tokens return nothing for an empty text."""
    if not prompt.token_ids:
        message = f"Invalid '{param}': the input has no tokens."
        raise InvalidRequest(message, param=param, code="empty_string")


def embedding_request(id: str, prompt: Prompt, *, dimensions: int | None = None) -> EmbedRequest:
    return EmbedRequest(
        request_id=id,
        prompt=prompt.text,
        prompt_token_ids=prompt.token_ids or None,
        dimensions=dimensions,
    )


def embedding_cost_us(prompt: Prompt) -> float:
    """Event loop time to send a prompt to the model, in the gateway and the engine."""
    return 50 + len(prompt.token_ids) * 0.03 + len(prompt.text or "") * 0.005
