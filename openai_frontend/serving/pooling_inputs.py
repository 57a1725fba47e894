"""Inputs of embeddings and of classifications as prompts: texts, token ids or a conversation."""

import logging
from collections.abc import Sequence
from typing import Any

from openai_frontend.errors import InvalidRequest
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.prompting.token_bytes import TiktokenDecoder
from openai_frontend.prompting.tokenizer import Truncation
from openai_frontend.serving.admission.model import Describes, Renders
from openai_frontend.serving.pooling import (
    VOCABULARY_HINT,
    Text,
    TimeSlicer,
    TokenIds,
    decoding_cost_us,
    input_truncation,
    tokenize_inputs,
)
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from openai_frontend.serving.request.media import NO_MEDIA, MediaReader, tokens_with_media
from openai_frontend.serving.request.media_parts import KINDS, MediaPart, unsupported_media
from openai_frontend.serving.request.template_inputs import template_messages
from schemas.chat_completions import ChatCompletionMessageParam
from schemas.embeddings import Input, PooledRequest

logger = logging.getLogger(__name__)

_ONLY_FOR_CHATS = {"add_generation_prompt", "continue_final_message", "chat_template_kwargs"}


class PoolingInputs:
    """Reads the inputs of requests to pooling models, within the server's limits."""

    def __init__(
        self,
        limits: InferenceLimits,
        policy: FieldPolicy,
        *,
        media: MediaReader | None = None,  # None: with the default limits
        tiktoken: TiktokenDecoder | None = None,  # decodes the token ids of requests
    ) -> None:
        self._limits = limits
        self._policy = policy
        self._media = media or MediaReader()
        self._tiktoken = tiktoken
        self._slicer = TimeSlicer()
        self._warned: set[str] = set()  # models that received token ids

    async def read(self, request: PooledRequest, model: Renders) -> list[Prompt]:
        """A prompt for each input. Raises InvalidRequest for what the model cannot read."""
        if request.messages is not None:
            prompts = [await self._chat(request, request.messages, model)]
        else:
            prompts = await self._tokenize(request, model)
        self._limits.check_input_tokens(sum(tokens_with_media(prompt, model) for prompt in prompts))
        return prompts

    async def _tokenize(self, request: PooledRequest, model: Renders) -> list[Prompt]:
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
        request: PooledRequest,
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


def _truncation(request: PooledRequest, model: Renders) -> Truncation | None:
    return input_truncation(request.truncate_prompt_tokens, request.truncation_side, model)
