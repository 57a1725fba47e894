"""Requests as their model would get them, in the form of vLLM's GenerateRequest. No HTTP."""

from typing import Any

from openai_frontend.contracts import sampling_parameters
from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import GenerationRequest
from openai_frontend.models.served_model import ServedModel
from openai_frontend.serving.output.completion_job import CompletionJob, request_id
from schemas.sampling import SamplingFields
from schemas.tokenization import RenderedPrompt


async def rendered(answer: CompletionJob, request: SamplingFields) -> list[RenderedPrompt]:
    """One for each prompt, however many choices it has. Raises for a beam search, as vLLM does."""
    if request.use_beam_search:
        message = "Unsupported parameter: 'use_beam_search' cannot be rendered."
        raise InvalidRequest(message, param="use_beam_search", code="unsupported_parameter")
    firsts = answer.requests[:: answer.n]
    return [
        RenderedPrompt.model_construct(  # checking a million ids takes 50 ms
            request_id=request_id(answer.id, at, prompts=len(firsts)),
            token_ids=list(first.prompt_token_ids or ()),
            sampling_params=_sampling_params(answer, first),
            model=answer.model.name,
            # The grammar allows for reasoning itself, so it holds from the first token on.
            reasoning_ended=True if first.sampling_params.structured_outputs else None,
            stream=bool(request.stream),
            stream_options=_stream_options(request),
            cache_salt=request.cache_salt,
            priority=request.priority or 0,
            prompt=await _text(first, answer.model),
            count=len(first.prompt_token_ids or ()),
            max_model_len=answer.model.max_model_len,
        )
        for at, first in enumerate(firsts)
    ]


def _sampling_params(answer: CompletionJob, first: GenerationRequest) -> dict[str, Any]:
    interval = answer.details.interval
    return {
        "n": answer.n,
        **sampling_parameters.fields_of(first.sampling_params),
        **({"stream_interval": interval} if interval > 1 else {}),
    }


def _stream_options(request: SamplingFields) -> dict[str, Any] | None:
    options = request.stream_options
    if not request.stream or options is None:
        return None
    return options.model_dump(include={"include_usage", "continuous_usage_stats"})  # vLLM's


async def _text(first: GenerationRequest, model: ServedModel) -> str:
    """The prompt's text; a prompt that was sent as tokens, or was cut, is decoded."""
    if first.prompt is not None:
        return first.prompt
    return await model.decode(first.prompt_token_ids or ())
