"""The models that one caller may use, and the charge of their work to the caller's API key."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol, TypeVar, Unpack

from openai_frontend.admission.queue import ConcurrencyLimits, QueueKey
from openai_frontend.auth.api_keys import Principal
from openai_frontend.auth.rate_limit import DEFAULT_OUTPUT_TOKENS, Reservation
from openai_frontend.errors import ModelHidden
from openai_frontend.generation import (
    CompletionDelta,
    EmbeddingResult,
    EmbedRequest,
    GenerationRequest,
    ScorePairRequest,
    ScoreResult,
)
from openai_frontend.media.modalities import (
    AudioSupport,
    ImageSupport,
    SpeechRequest,
    SpeechSupport,
    TranscriptionSupport,
)
from openai_frontend.models.served_model import ModelCard
from openai_frontend.models.triton_model import ModelUse
from openai_frontend.parsing.output_format import OutputFormat
from openai_frontend.prompting.chat_template import TemplateArguments
from openai_frontend.prompting.prompt import Prompt, TokenizeKwargs
from openai_frontend.prompting.tokenizer import Truncation
from openai_frontend.serving.admission.model import ServingModel, Work


class ModelProvider(Protocol):
    """The part of the registry that requests need."""

    async def ensure_loaded(self, name: str) -> None:
        """Load the model if models are loaded on demand."""

    def get(self, name: str) -> ServingModel:
        """The model, ready to serve. Raises ModelNotFound."""

    def card(self, name: str) -> ModelCard:
        """A description of the model. Raises ModelNotFound."""

    def cards(self) -> Sequence[ModelCard]:
        """All models that requests can name, sorted by name."""


def allows(caller: Principal | None, name: str) -> bool:
    """`caller` is None if the server has no keys or the path is public."""
    return caller is None or caller.key.allows(name)


def check_allowed(caller: Principal | None, name: str) -> None:
    """Raise ModelHidden if the key does not allow the model."""
    if not allows(caller, name):
        raise ModelHidden(name)


class AuthorizedModels:
    """The models that the caller's key allows, at the cost of its rate limits."""

    def __init__(
        self, models: ModelProvider, caller: Principal, reservation: Reservation | None = None
    ) -> None:
        """`reservation` is the request's; None for a request without inference."""
        self._models = models
        self._caller = caller
        self._reservation = reservation or Reservation(caller.rate_limiter)

    async def ensure_loaded(self, name: str) -> None:
        """Load a model only for callers that may use it."""
        check_allowed(self._caller, name)
        await self._models.ensure_loaded(name)

    def get(self, name: str) -> "MeteredModel":
        """The model; its work is charged to the caller."""
        check_allowed(self._caller, name)
        return MeteredModel(self._models.get(name), self._caller, self._reservation)

    def card(self, name: str) -> ModelCard:
        check_allowed(self._caller, name)
        return self._models.card(name)

    def cards(self) -> list[ModelCard]:
        return [card for card in self._models.cards() if self._caller.key.allows(card.name)]


Pooled = TypeVar("Pooled", EmbeddingResult, ScoreResult)
Input = TypeVar("Input", EmbedRequest, ScorePairRequest)


class MeteredModel:
    """A served model on behalf of one caller, for one request.

    Tokens are reserved before the request waits for a slot. The first work of a request fails if
    the key has too few. Other work of the same request (more choices, more texts) may overdraw the
    key, so that no request fails half-way.
    """

    def __init__(self, model: ServingModel, caller: Principal, reservation: Reservation) -> None:
        self._model = model
        self._caller = caller
        self._reservation = reservation
        self._begun = False

    def queue_key(self, priority: int) -> QueueKey:
        """The key's own place in queues: requests of one key wait for each other."""
        return QueueKey(self._caller.key.digest, self._caller.priority(priority))

    def reserve(self, first: Work) -> None:
        """Reserve what the first work of a request may use. Raises RateLimited."""
        if self._caller.rate_limiter.limits_tokens:
            self._reservation.take(self._cost(first))
            self._begun = True

    def generate(self, request: GenerationRequest) -> AsyncGenerator[list[CompletionDelta], None]:
        """Generate with the key's priority and caches."""
        caller = self._caller
        priority, owner = caller.priority(request.priority), caller.cache_owner
        if priority != request.priority or owner is not None:  # most models get no priority
            request = replace(request, priority=priority, cache_owner=owner)
        deltas = self._model.generate(request)
        return self._charged(request, deltas) if caller.rate_limiter.limits_tokens else deltas

    async def _charged(
        self, request: GenerationRequest, deltas: AsyncGenerator[list[CompletionDelta], None]
    ) -> AsyncGenerator[list[CompletionDelta], None]:
        """Charge a cancelled generation as reserved, or as counted if that is more, and a failed
        one as counted.
        """
        usage, reserved = request.usage, self._reserve(request)
        failed = True
        try:
            async for burst in deltas:
                yield burst
            failed = False
        except (asyncio.CancelledError, GeneratorExit):
            failed = False
            raise
        finally:
            await deltas.aclose()
            prompt_tokens = usage.prompt_tokens or _prompt_tokens(request)
            charged = prompt_tokens * request.sequences + usage.completion_tokens
            if not (failed or usage.finished):
                charged = max(charged, reserved)
            self._reservation.settle(reserved=reserved, used=charged)

    def _cost(self, work: Work) -> int:
        """Tokens that the work may use."""
        prompt_tokens = _prompt_tokens(work)
        if not isinstance(work, ScorePairRequest | SpeechRequest) and work.images:
            support = self._model.images or ImageSupport()
            prompt_tokens += len(work.images) * (support.max_tokens_per_image or 0)
        if isinstance(work, GenerationRequest) and work.audio_files:
            heard = self._model.audio or AudioSupport()
            prompt_tokens += len(work.audio_files) * (heard.max_tokens_per_audio or 0)
        if not isinstance(work, GenerationRequest):
            return prompt_tokens
        return work.sequences * (prompt_tokens + self._answer_tokens(work, prompt_tokens))

    def _answer_tokens(self, request: GenerationRequest, prompt_tokens: int) -> int:
        max_tokens, context = request.sampling_params.max_tokens, self._model.max_model_len
        fills = max_tokens is None or (
            context is not None and prompt_tokens + max_tokens >= context
        )
        if max_tokens is None or fills:
            return (
                DEFAULT_OUTPUT_TOKENS
                if max_tokens is None
                else min(max_tokens, DEFAULT_OUTPUT_TOKENS)
            )
        return max_tokens

    async def embed(self, requests: Sequence[EmbedRequest]) -> list[EmbeddingResult]:
        owned = self._owned(requests)
        return await self._charge(owned, self._model.embed(owned))

    async def score(self, requests: Sequence[ScorePairRequest]) -> list[ScoreResult]:
        owned = self._owned(requests)
        return await self._charge(owned, self._model.score(owned))

    def _owned(self, requests: Sequence[Input]) -> Sequence[Input]:
        owner = self._caller.cache_owner
        if owner is None:
            return requests
        return [replace(each, cache_owner=owner) for each in requests]

    async def _charge(
        self, works: Sequence[Work], pooling: Coroutine[Any, Any, list[Pooled]]
    ) -> list[Pooled]:
        """Charge results their tokens, a cancelled request what it reserved, and a failed one
        nothing.
        """
        costs = list(map(self._reserve, works))
        reserved, used = sum(costs), 0
        try:
            results = await pooling
            counted = zip(results, costs, strict=True)
            used = sum(result.prompt_tokens or cost for result, cost in counted)
        except (asyncio.CancelledError, GeneratorExit):
            used = reserved
            raise
        finally:
            self._reservation.settle(reserved=reserved, used=used)
        return results

    async def speak(self, request: SpeechRequest) -> AsyncGenerator[memoryview, None]:
        """Charge the text, and nothing if it fails before the first sample."""
        reserved, used = self._reserve(request), 0
        try:
            async with aclosing(self._model.speak(request)) as parts:
                async for samples in parts:
                    used = reserved
                    yield samples
        except (asyncio.CancelledError, GeneratorExit):
            used = reserved
            raise
        finally:
            self._reservation.settle(reserved=reserved, used=used)

    def _reserve(self, work: Work) -> int:
        """The tokens to settle at the end: those that `reserve` took, or the work's own."""
        tokens = self._reservation.use()
        if not tokens:
            tokens = self._cost(work)
            self._caller.rate_limiter.reserve(tokens, allow_debt=self._begun)
            self._begun = True
        return tokens

    # Not charged

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def model_name(self) -> str:
        return self._model.model_name

    @property
    def fingerprint(self) -> str:
        return self._model.fingerprint

    @property
    def tasks(self) -> frozenset[str]:
        return self._model.tasks

    @property
    def output_format(self) -> OutputFormat:
        return self._model.output_format

    @property
    def use(self) -> ModelUse:
        return self._model.use

    @property
    def concurrency_limits(self) -> ConcurrencyLimits:
        return self._model.concurrency_limits

    @property
    def max_model_len(self) -> int | None:
        return self._model.max_model_len

    @property
    def max_output_tokens(self) -> int | None:
        return self._model.max_output_tokens

    @property
    def vocab_size(self) -> int | None:
        return self._model.vocab_size

    @property
    def dimensions(self) -> int | None:
        return self._model.dimensions

    @property
    def matryoshka(self) -> bool | None:
        return self._model.matryoshka

    @property
    def prompts(self) -> object | None:
        return self._model.prompts

    @property
    def images(self) -> ImageSupport | None:
        return self._model.images

    @property
    def audio(self) -> AudioSupport | None:
        return self._model.audio

    @property
    def transcription(self) -> TranscriptionSupport | None:
        return self._model.transcription

    @property
    def speech(self) -> SpeechSupport | None:
        return self._model.speech

    @property
    def tenant(self) -> str:
        return self._caller.key.digest

    @property
    def takes_batches(self) -> bool:
        return self._model.takes_batches

    def supports(self, field: str) -> bool:
        return self._model.supports(field)

    def template_knows(self, name: str) -> bool:
        return self._model.template_knows(name)

    def template_accepts(self, name: str, value: str) -> bool:
        return self._model.template_accepts(name, value)

    def fill_in_the_middle(self, prefix: str, suffix: str) -> str:
        return self._model.fill_in_the_middle(prefix, suffix)

    def document_start(self) -> int | None:
        return self._model.document_start()

    def token_bytes(self, token_id: int) -> bytes | None:
        return self._model.token_bytes(token_id)

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return self._model.detokenize(token_ids, skip_special_tokens=skip_special_tokens)

    async def decode(self, token_ids: Sequence[int]) -> str:
        return await self._model.decode(token_ids)

    async def vocabulary_tokens(self, token_ids: Sequence[int]) -> list[str | None]:
        return await self._model.vocabulary_tokens(token_ids)

    async def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_special_tokens: bool = False,
        truncation: Truncation | None = None,
        within_context: bool = True,
        extra_characters: int | None = None,
        media: Mapping[str, int] | None = None,
        **rendering: Unpack[TemplateArguments],
    ) -> Prompt:
        return await self._model.render_chat(
            messages,
            add_special_tokens=add_special_tokens,
            truncation=truncation,
            within_context=within_context,
            extra_characters=extra_characters,
            media=media,
            **rendering,
        )

    async def tokenize(
        self, text: str, *, param: str = "prompt", **how: Unpack[TokenizeKwargs]
    ) -> Prompt:
        return await self._model.tokenize(text, param=param, **how)

    async def tokenize_all(
        self, texts: Sequence[str], *, params: Sequence[str], **how: Unpack[TokenizeKwargs]
    ) -> list[Prompt]:
        return await self._model.tokenize_all(texts, params=params, **how)

    async def decoder_prompt(self, start: str, previous: str = "") -> Prompt:
        return await self._model.decoder_prompt(start, previous)

    async def tokenize_pair(
        self,
        first: str,
        second: str,
        *,
        param: str = "documents",
        truncation: Truncation | None = None,
    ) -> tuple[list[int], list[int]]:
        return await self._model.tokenize_pair(first, second, param=param, truncation=truncation)


def _prompt_tokens(work: Work) -> int:
    """Prompt tokens; for text that the backend tokenizes, an estimate of four characters each."""
    if isinstance(work, SpeechRequest):
        return len(work.text) // 4 + 1
    if isinstance(work, ScorePairRequest) or work.prompt_token_ids is not None:
        return len(work.prompt_token_ids or ())
    return len(work.prompt or "") // 4
