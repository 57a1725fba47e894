"""vLLM's `truncate_prompt_tokens` and `truncation_side`, as what prompting understands."""

from openai_frontend.models.served_model import ServedModel
from openai_frontend.prompting.tokenizer import Truncation
from openai_frontend.serving.request.sampling import unsupported
from schemas.sampling import SamplingFields


def truncation(
    request: SamplingFields, model: ServedModel, *, answer_tokens: int
) -> Truncation | None:
    """How the prompt is cut; None where it must fit as it is. -1 leaves room for the answer."""
    tokens = request.truncate_prompt_tokens
    if tokens is None:
        return None
    if not model.supports("prompt_token_ids") or model.max_model_len is None:
        raise unsupported("truncate_prompt_tokens")  # a prompt as text has no tokens to cut
    room = max(1, model.max_model_len - answer_tokens)
    # vLLM keeps the end of a prompt by default, which is what the model goes on from
    return Truncation(room if tokens < 1 else tokens, request.truncation_side or "left")
