"""Embeddings: request to vectors, vectors to the bytes of the answer. No HTTP."""

import logging
from collections.abc import Sequence
from typing import Any

from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import EmbedRequest
from openai_frontend.models.served_model import ServedModel
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.prompting.tiktoken_decode import TiktokenDecoder
from openai_frontend.serving.admission.batch import run_batch
from openai_frontend.serving.admission.concurrency_limit import ConcurrencyLimiter, ModelSlots
from openai_frontend.serving.admission.time_slicer import TimeSlicer
from openai_frontend.serving.output.completion_job import new_id
from openai_frontend.serving.output.vectors import embedding_list, render, rendering_cost_us
from openai_frontend.serving.request.embedding_inputs import (
    VOCABULARY_HINT,
    Text,
    TokenIds,
    input_truncation,
    tokenize_inputs,
)
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from openai_frontend.serving.request.pooling_fields import NEUTRAL_IN_EMBEDDINGS
from schemas.embeddings import EmbeddingRequest as WireRequest
from schemas.embeddings import Input

logger = logging.getLogger(__name__)


class Embeddings:
    """What POST /v1/embeddings means, whatever carries it."""

    def __init__(
        self,
        limits: InferenceLimits,
        policy: FieldPolicy,
        limiter: ConcurrencyLimiter,
        *,
        tiktoken: TiktokenDecoder | None = None,  # reads the token ids of every request
    ) -> None:
        self._limits = limits
        self._policy = policy
        self._limiter = limiter
        self._tiktoken = tiktoken
        self._turns = TimeSlicer()
        self._warned: set[str] = set()  # the models that were sent token ids

    async def create(self, request: WireRequest, model: ServedModel) -> bytes:
        """The whole answer as JSON; raises for what this model or server cannot honour."""
        slots = self._limiter.slots_for(model)
        slots.check(model.turn(0))
        self._policy.check_extra(request, NEUTRAL_IN_EMBEDDINGS)
        _check_embeds(model)
        _check_dimensions(request.dimensions, model)
        inputs = self._inputs(request.input)
        if self._tiktoken is not None:
            inputs = [_as_text(each, self._tiktoken) for each in inputs]
        self._warn_of_token_ids(inputs, model)
        prompts = await tokenize_inputs(
            inputs,
            model,
            add_special_tokens=request.add_special_tokens is not False,
            truncation=input_truncation(
                request.truncate_prompt_tokens, request.truncation_side, model
            ),
        )
        self._limits.check_input_tokens(sum(len(prompt.token_ids) for prompt in prompts))
        data, prompt_tokens = await self._embed(request, prompts, model, slots)
        usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
        return embedding_list(data, {"model": model.name, "usage": usage})

    async def _embed(
        self,
        request: WireRequest,
        prompts: Sequence[Prompt],
        model: ServedModel,
        slots: ModelSlots,
    ) -> tuple[list[bytes], int]:
        """Each vector is rendered as it comes, which frees its tensor and spreads the work."""
        id = new_id("embd")
        as_base64 = request.encoding_format == "base64"
        read = 0

        async def embed(at: int) -> bytes:
            nonlocal read
            await self._turns.take(embedding_cost_us(prompts[at]))
            result = await model.embed(
                embedding_request(f"{id}-{at}", prompts[at], dimensions=request.dimensions)
            )
            await self._turns.take(rendering_cost_us(result.embedding, as_base64=as_base64))
            read += result.prompt_tokens or len(prompts[at].token_ids)  # not every backend counts
            return render(at, result.embedding, as_base64=as_base64)

        model.reserve(embedding_request(id, prompts[0]))
        data = await run_batch(slots, embed, range(len(prompts)), model.turn(0))
        return data, read

    def _inputs(self, given: Input) -> list[Text | TokenIds]:
        """A list of inputs, whichever of the four forms the request has."""
        if isinstance(given, str) or isinstance(given[0], int):
            return [_input(given, "input")]
        self._limits.check_inputs(len(given))
        return [_input(each, f"input[{index}]") for index, each in enumerate(given)]

    def _warn_of_token_ids(self, inputs: Sequence[Text | TokenIds], model: ServedModel) -> None:
        """Ids of another vocabulary that this one has too cannot be told from the right ones."""
        if isinstance(inputs[0], Text) or model.name in self._warned:
            return
        self._warned.add(model.name)
        logger.warning("model %s is sent token ids. %s (told once)", model.name, VOCABULARY_HINT)


def embedding_request(id: str, prompt: Prompt, *, dimensions: int | None = None) -> EmbedRequest:
    """One prompt's request."""
    return EmbedRequest(
        request_id=id,
        prompt=prompt.text,
        prompt_token_ids=prompt.token_ids or None,
        dimensions=dimensions,
    )


def embedding_cost_us(prompt: Prompt) -> float:
    """What the event loop needs to send it to the model: the gateway's part and an engine's."""
    return 50 + len(prompt.token_ids) * 0.03 + len(prompt.text or "") * 0.005


def _input(given: Any, place: str) -> Text | TokenIds:
    """A text, or else token ids: the schema lets nothing else through."""
    return Text(given, place) if isinstance(given, str) else TokenIds(given, place)


def _as_text(given: Text | TokenIds, tiktoken: TiktokenDecoder) -> Text:
    if isinstance(given, Text):
        return given
    return Text(tiktoken.decode(given.token_ids, param=given.place), given.place)


def _check_embeds(model: ServedModel) -> None:
    if "embed" not in model.tasks:
        message = f"The model '{model.name}' makes no embeddings."
        raise InvalidRequest(message, param="model", code="unsupported_model")


def _check_dimensions(dimensions: int | None, model: ServedModel) -> None:
    """Only the models that were trained for it give shorter vectors that mean something."""
    own = model.dimensions
    if dimensions is None or dimensions == own:
        return
    if model.matryoshka is False:
        message = "This model does not support specifying dimensions."
        raise InvalidRequest(message, param="dimensions", code="unsupported_parameter")
    if own is not None and dimensions > own:
        message = (
            f"Invalid value for 'dimensions' = {dimensions}. Must be less than or equal to {own}."
        )
        raise InvalidRequest(message, param="dimensions", code="integer_above_max_value")
