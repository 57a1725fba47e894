"""Tokens of texts and chats, texts of tokens, and requests as the model would get them."""

from collections.abc import Sequence
from typing import Any

from openai_frontend.contracts import sampling_parameters
from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import GenerationRequest
from openai_frontend.media.modalities import AudioFile, ImageInput
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.serving.admission.model import Describes, Renders
from openai_frontend.serving.output.completion_job import CompletionJob, request_id
from openai_frontend.serving.request.field_policy import FieldPolicy, Neutral
from openai_frontend.serving.request.limits import InferenceLimits
from openai_frontend.serving.request.media import NO_MEDIA, MediaReader
from openai_frontend.serving.request.media_parts import MediaPart
from openai_frontend.serving.request.sampling import unsupported
from openai_frontend.serving.request.template_inputs import template_messages
from schemas.sampling import SamplingFields
from schemas.tokenization import (
    DetokenizeRequest,
    DetokenizeResponse,
    RenderedPrompt,
    TokenizeRequest,
    TokenizeResponse,
)

# vLLM's fields that would change the tokens
_NEUTRAL: Neutral = {
    "chat_template": (),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
}
_ONLY_FOR_CHATS = (
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
)


class Tokenization:
    """POST /tokenize and /detokenize, independent of HTTP."""

    def __init__(
        self, limits: InferenceLimits, policy: FieldPolicy, media: MediaReader | None = None
    ) -> None:
        """`media`: None for the default limits."""
        self._limits = limits
        self._policy = policy
        self._media = media or MediaReader()

    async def tokenize(self, request: TokenizeRequest, model: Renders) -> TokenizeResponse:
        """The tokens, even if they exceed the context. Raises for unsupported fields."""
        self._policy.check_extra(request, _NEUTRAL)
        if (request.prompt is None) == (request.messages is None):
            raise _one_of_two(request)
        if request.messages is None:
            prompt = await self._text(request, model)
            ids = prompt.token_ids
        else:
            prompt = await self._chat(request, model)
            ids = _with_media(prompt.token_ids, model)
        return TokenizeResponse.model_construct(  # checking a million ids takes 50 ms
            count=len(ids),
            max_model_len=model.facts.max_model_len,
            tokens=list(ids),
            token_strs=await model.vocabulary_tokens(ids) if request.return_token_strs else None,
            uncounted_media=_uncounted(prompt, model),
        )

    async def detokenize(self, request: DetokenizeRequest, model: Renders) -> DetokenizeResponse:
        """The text of the tokens, including special tokens."""
        self._policy.check_extra(request, {})
        text = await model.decode(request.tokens)
        largest = max(request.tokens, default=0)
        if request.tokens and model.token_bytes(largest) is None:
            message = f"Invalid 'tokens': the model's tokenizer has no token {largest}."
            raise InvalidRequest(message, param="tokens")
        return DetokenizeResponse(prompt=text)

    async def _text(self, request: TokenizeRequest, model: Renders) -> Prompt:
        for field in _ONLY_FOR_CHATS:
            if getattr(request, field) is not None:
                message = f"Unsupported parameter: '{field}' is only supported with 'messages'."
                raise InvalidRequest(message, param=field, code="unsupported_parameter")
        return await model.tokenize(
            request.prompt or "",
            add_special_tokens=request.add_special_tokens is not False,
            within_context=False,
        )

    async def _chat(self, request: TokenizeRequest, model: Renders) -> Prompt:
        messages = request.messages or []
        self._limits.check_messages(len(messages))
        if request.continue_final_message and request.add_generation_prompt:
            message = "Use either 'continue_final_message' or 'add_generation_prompt'."
            raise InvalidRequest(message, param="continue_final_message")
        if request.tools and not model.template_knows("tools"):
            raise unsupported("tools")
        opened = bool(request.continue_final_message)
        generation_prompt = request.add_generation_prompt
        parts: list[MediaPart] = []
        rendered = template_messages(messages, self._policy, parts)
        media = await self._media.read(parts, model) if parts else NO_MEDIA
        prompt = await model.render_chat(
            rendered,
            media=media.counts if parts else None,
            add_special_tokens=bool(request.add_special_tokens),
            within_context=False,
            extra_characters=None if request.tools or request.chat_template_kwargs else 0,
            tools=request.tools,
            add_generation_prompt=not opened if generation_prompt is None else generation_prompt,
            continue_final_message=opened,
            template_kwargs=request.chat_template_kwargs,
        )
        return media.beside(prompt)


def _with_media(ids: Sequence[int], model: Describes) -> Sequence[int]:
    """The tokens as the engine counts them, if all images, and all audio, have the same ones."""
    for support in (model.facts.images, model.facts.audio):
        if support is not None:
            ids = support.expanded(ids)
    return ids


def _uncounted(prompt: Prompt | GenerationRequest, model: Describes) -> list[str] | None:
    """The places of media whose tokens only the engine knows; None if there are none."""
    media: list[ImageInput | AudioFile] = []
    if prompt.images and model.facts.images is not None and model.facts.images.tokens is None:
        media += prompt.images
    if prompt.audio_files and model.facts.audio is not None and model.facts.audio.tokens is None:
        media += prompt.audio_files
    return [each.param for each in media] or None


def _one_of_two(request: TokenizeRequest) -> InvalidRequest:
    if request.prompt is None:
        message = "Missing required parameter: 'prompt'."
        return InvalidRequest(message, param="prompt", code="missing_required_parameter")
    message = "Use either 'prompt' or 'messages'."
    return InvalidRequest(message, param="messages")


async def rendered(job: CompletionJob, request: SamplingFields) -> list[RenderedPrompt]:
    """vLLM's GenerateRequest for each prompt. Like vLLM, raises InvalidRequest for beam search."""
    if request.use_beam_search:
        message = "Unsupported parameter: 'use_beam_search' cannot be rendered."
        raise InvalidRequest(message, param="use_beam_search", code="unsupported_parameter")
    firsts = job.requests[:: job.n]
    return [
        RenderedPrompt.model_construct(  # checking a million ids takes 50 ms
            request_id=request_id(job.id, at, prompts=len(firsts)),
            token_ids=list(ids),
            sampling_params=_sampling_params(job, first),
            model=job.model.name,
            # The grammar includes reasoning, so it applies from the first token on.
            reasoning_ended=True if first.sampling_params.structured_outputs else None,
            stream=bool(request.stream),
            stream_options=_stream_options(request),
            cache_salt=request.cache_salt,
            priority=request.priority or 0,
            prompt=await _text(first, job.model),
            count=len(ids),
            max_model_len=job.model.facts.max_model_len,
            uncounted_media=_uncounted(first, job.model),
        )
        for at, first in enumerate(firsts)
        for ids in [_tokens(first, job.model)]
    ]


def _tokens(first: GenerationRequest, model: Describes) -> Sequence[int]:
    ids = first.prompt_token_ids or ()
    return _with_media(ids, model) if first.images or first.audio_files else ids


def _sampling_params(job: CompletionJob, first: GenerationRequest) -> dict[str, Any]:
    interval = job.options.interval
    return {
        "n": job.n,
        **sampling_parameters.fields_of(first.sampling_params),
        **({"stream_interval": interval} if interval > 1 else {}),
    }


def _stream_options(request: SamplingFields) -> dict[str, Any] | None:
    options = request.stream_options
    if not request.stream or options is None:
        return None
    return options.model_dump(include={"include_usage", "continuous_usage_stats"})  # vLLM's


async def _text(first: GenerationRequest, model: Renders) -> str:
    """The prompt's text, decoded if it was sent as tokens or truncated."""
    if first.prompt is not None:
        return first.prompt
    return await model.decode(first.prompt_token_ids or ())
