"""vLLM's `truncate_prompt_tokens` and `truncation_side` for prompts and embedding inputs."""

from typing import Literal

from openai_frontend.errors import InvalidRequest
from openai_frontend.prompting.tokenizer import Truncation
from openai_frontend.serving.admission.model import ServingModel
from openai_frontend.serving.request.sampling import unsupported
from schemas.sampling import SamplingFields


def truncation(
    request: SamplingFields, model: ServingModel, *, output_tokens: int
) -> Truncation | None:
    """How to truncate the prompt; None if it must fit. -1 leaves room for the output."""
    tokens = request.truncate_prompt_tokens
    if tokens is None:
        return None
    if not model.supports("prompt_token_ids") or model.max_model_len is None:
        raise unsupported("truncate_prompt_tokens")  # the backend tokenizes
    room = max(1, model.max_model_len - output_tokens)
    # like vLLM, keep the end, which the model continues
    return Truncation(room if tokens < 1 else tokens, request.truncation_side or "left")


def input_truncation(
    truncate_prompt_tokens: int | None, side: Literal["left", "right"] | None, model: ServingModel
) -> Truncation | None:
    """How to truncate inputs; None if each must fit. -1 truncates to the model's context."""
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
    # like vLLM and the models' tokenizers, keep the beginning
    return Truncation(context if tokens < 1 else tokens, side or "right")
