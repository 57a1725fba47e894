"""Embeddings: from a request to vectors, from vectors to the bytes of the response."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from openai_frontend.errors import GatewayError, InferenceFailed, InvalidRequest
from openai_frontend.generation import EmbeddingResult, EmbedRequest
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.prompting.token_bytes import TiktokenDecoder
from openai_frontend.prompting.tokenizer import Truncation
from openai_frontend.request_context.context import current_request
from openai_frontend.serving.admission.model import Describes, Generates, Renders, ServingModel
from openai_frontend.serving.admission.permit import Admission, Permit
from openai_frontend.serving.output.completion_job import new_id
from openai_frontend.serving.pooling import (
    FLOAT_BYTES,
    VOCABULARY_HINT,
    Text,
    TimeSlicer,
    TokenIds,
    decoding_cost_us,
    embedding_cost_us,
    embedding_list,
    embedding_request,
    gather_batches,
    input_truncation,
    render,
    rendering_cost_us,
    tokenize_inputs,
)
from openai_frontend.serving.request.field_policy import NEUTRAL_IN_EMBEDDINGS, FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from openai_frontend.serving.request.media import NO_MEDIA, MediaReader, tokens_with_media
from openai_frontend.serving.request.media_parts import KINDS, MediaPart, unsupported_media
from openai_frontend.serving.request.template_inputs import template_messages
from schemas.chat_completions import ChatCompletionMessageParam
from schemas.embeddings import EmbeddingRequest, Input

logger = logging.getLogger(__name__)

_ONLY_FOR_CHATS = {"add_generation_prompt", "continue_final_message", "chat_template_kwargs"}


class Embeddings:
    """POST /v1/embeddings, independent of HTTP."""

    def __init__(
        self,
        limits: InferenceLimits,
        policy: FieldPolicy,
        admission: Admission,
        *,
        media: MediaReader | None = None,  # None: with the default limits
        tiktoken: TiktokenDecoder | None = None,  # decodes the token ids of requests
    ) -> None:
        self._limits = limits
        self._policy = policy
        self._admission = admission
        self._media = media or MediaReader()
        self._tiktoken = tiktoken
        self._slicer = TimeSlicer()
        self._warned: set[str] = set()  # models that received token ids

    async def create(self, request: EmbeddingRequest, model: ServingModel) -> bytes:
        """The response as JSON. Raises for what this model or server does not support."""
        self._admission.check(current_request(), model)
        self._policy.check_extra(request, NEUTRAL_IN_EMBEDDINGS)
        _check_embeds(model)
        _check_dimensions(request.dimensions, model)
        if request.messages is not None:
            prompts = [await self._chat(request, request.messages, model)]
        else:
            prompts = await self._tokenize(request, model)
        self._limits.check_input_tokens(sum(tokens_with_media(prompt, model) for prompt in prompts))
        data, prompt_tokens = await self._embed(request, prompts, model)
        usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
        return embedding_list(data, {"model": model.name, "usage": usage})

    async def _tokenize(self, request: EmbeddingRequest, model: Renders) -> list[Prompt]:
        if request.input is None:
            message = "Missing required parameter: 'input'."
            raise InvalidRequest(message, param="input", code="missing_required_parameter")
        for name in request.model_fields_set & _ONLY_FOR_CHATS:
            if getattr(request, name) is not None:
                message = f"Unsupported parameter: '{name}' is only supported with 'messages'."
                raise InvalidRequest(message, param=name, code="unsupported_parameter")
        inputs = self._inputs(request.input)
        if self._tiktoken is not None:
            inputs = [await self._as_text(each, self._tiktoken) for each in inputs]
        self._warn_about_token_ids(inputs, model)
        return await tokenize_inputs(
            inputs,
            model,
            add_special_tokens=request.add_special_tokens is not False,
            truncation=_truncation(request, model),
        )

    async def _chat(
        self,
        request: EmbeddingRequest,
        messages: Sequence[ChatCompletionMessageParam],
        model: Renders,
    ) -> Prompt:
        """A conversation as one input, which may have images. By default without the beginning of
        an answer, as in vLLM.
        """
        if request.input is not None:
            message = "Use either 'input' or 'messages'."
            raise InvalidRequest(message, param="messages")
        self._limits.check_messages(len(messages))
        parts: list[MediaPart] = []
        template_input = template_messages(messages, self._policy, parts)
        for each in parts:
            if KINDS[each.part["type"]] != "image":
                raise unsupported_media(each)
        media = await self._media.read(parts, model) if parts else NO_MEDIA
        prompt = await model.render_chat(
            template_input,
            media=media.counts if parts else None,
            add_special_tokens=bool(request.add_special_tokens),
            truncation=_truncation(request, model),
            add_generation_prompt=bool(request.add_generation_prompt),
            continue_final_message=bool(request.continue_final_message),
            template_kwargs=request.chat_template_kwargs,
        )
        return media.beside(prompt)

    async def _embed(
        self,
        request: EmbeddingRequest,
        prompts: Sequence[Prompt],
        model: Generates,
    ) -> tuple[list[bytes], int]:
        """Vectors as JSON, and the usage. Rendering a batch on arrival frees its tensor."""
        id = new_id("embd")
        as_base64 = request.encoding_format == "base64"
        prompt_tokens = 0

        async def embed(batch: range) -> list[bytes]:
            nonlocal prompt_tokens
            first, end = batch.start, batch.stop
            await self._slicer.take(embedding_cost_us(prompts[first:end]))
            data = []
            for at, result in enumerate(await _vectors(requests[first:end], model, permit), first):
                await self._slicer.take(rendering_cost_us(result.embedding, as_base64=as_base64))
                # not every backend counts
                prompt_tokens += result.prompt_tokens or len(ids[at])
                data.append(render(at, result.embedding, as_base64=as_base64))
            return data

        ids = [prompt.token_ids for prompt in prompts]
        own = model.facts.dimensions
        dimensions = None if request.dimensions == own else request.dimensions
        requests = [
            embedding_request(
                f"{id}-{at}",
                prompt,
                dimensions=dimensions,
                param=f"input[{at}]" if len(prompts) > 1 else None,
            )
            for at, prompt in enumerate(prompts)
        ]
        context, wanted = current_request(), len(requests)
        async with self._admission.enter(context, model, requests[0], wanted=wanted) as permit:
            data = await gather_batches(embed, ids, model, permit.granted)
        return data, prompt_tokens

    def _inputs(self, value: Input) -> list[Text | TokenIds]:
        """The inputs of any of the four forms that a request may have."""
        if isinstance(value, str) or isinstance(value[0], int):
            return [_input(value, "input")]
        self._limits.check_inputs(len(value))
        return [_input(each, f"input[{index}]") for index, each in enumerate(value)]

    async def _as_text(self, item: Text | TokenIds, tiktoken: TiktokenDecoder) -> Text:
        if isinstance(item, Text):
            return item
        await self._slicer.take(decoding_cost_us(item.token_ids))
        return Text(tiktoken.decode(item.token_ids, param=item.param), item.param)

    def _warn_about_token_ids(self, inputs: Sequence[Text | TokenIds], model: Describes) -> None:
        """Ids of another tokenizer may be valid here, so the server can only warn."""
        if isinstance(inputs[0], Text) or model.name in self._warned:
            return
        self._warned.add(model.name)
        logger.warning(
            "requests send token ids; model=%s. %s (logged once)", model.name, VOCABULARY_HINT
        )


def _input(value: Any, param: str) -> Text | TokenIds:
    """A text, or else token ids: the schema allows nothing else."""
    return Text(value, param) if isinstance(value, str) else TokenIds(value, param)


def _truncation(request: EmbeddingRequest, model: Renders) -> Truncation | None:
    return input_truncation(request.truncate_prompt_tokens, request.truncation_side, model)


async def _vectors(
    requests: Sequence[EmbedRequest], model: Describes, permit: Permit
) -> Sequence[EmbeddingResult]:
    """A model whose length is not known may refuse `dimensions` although it is that length."""
    try:
        return await permit.embed(requests)
    except (InvalidRequest, InferenceFailed) as refused:
        dimensions = requests[0].dimensions
        if dimensions is None or model.facts.dimensions is not None:
            raise
        try:
            results = await permit.embed([replace(each, dimensions=None) for each in requests])
        except GatewayError:
            raise refused from None  # for another reason
    if any(result.embedding.nbytes != dimensions * FLOAT_BYTES for result in results):
        raise _no_dimensions()
    return results


def _no_dimensions() -> InvalidRequest:
    message = "This model does not support specifying dimensions."
    return InvalidRequest(message, param="dimensions", code="unsupported_parameter")


def _check_embeds(model: Describes) -> None:
    if "embed" not in model.tasks:
        message = f"The model '{model.name}' does not create embeddings."
        raise InvalidRequest(message, param="model", code="unsupported_model")


def _check_dimensions(dimensions: int | None, model: Describes) -> None:
    """Shorter vectors are only useful from models that were trained for them."""
    own = model.facts.dimensions
    if dimensions is None or dimensions == own:
        return
    if model.facts.matryoshka is False:
        raise _no_dimensions()
    if own is not None and dimensions > own:
        message = (
            f"Invalid value for 'dimensions' = {dimensions}. Must be less than or equal to {own}."
        )
        raise InvalidRequest(message, param="dimensions", code="integer_above_max_value")
