"""The models as one caller sees them: those that his key allows, at the cost of its limits."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

from openai_frontend.admission.limits import QueueKey
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
from openai_frontend.models.served_model import ModelCard, ServedModel

Work = GenerationRequest | EmbedRequest | ScorePairRequest


class ModelProvider(Protocol):
    """What requests ask of the registry."""

    async def ensure_loaded(self, name: str) -> None:
        """Loads the model, where models are loaded on demand."""

    def get(self, name: str) -> ServedModel:
        """The model, ready to serve."""

    def card(self, name: str) -> ModelCard:
        """What is known of a model."""

    def cards(self) -> Sequence[ModelCard]:
        """The models that requests can name, by name."""


def allows(caller: Principal | None, name: str) -> bool:
    """`caller`: None where the server has no keys, or the address is open to everybody."""
    return caller is None or caller.key.allows(name)


def check_allowed(caller: Principal | None, name: str) -> None:
    """Raises ModelHidden where the key does not allow the model."""
    if not allows(caller, name):
        raise ModelHidden(name)


class AuthorizedModels:
    """Of all models those that the caller's key allows."""

    def __init__(
        self, models: ModelProvider, caller: Principal, reservation: Reservation | None = None
    ) -> None:
        """`reservation` is the request's; None where it asks no model for work."""
        self._models = models
        self._caller = caller
        self._reservation = reservation or Reservation(caller.rate_limiter)

    async def ensure_loaded(self, name: str) -> None:
        """Nobody's request loads a model that it may not use."""
        check_allowed(self._caller, name)
        await self._models.ensure_loaded(name)

    def get(self, name: str) -> ServedModel:
        """The model, whose work is charged to the caller."""
        check_allowed(self._caller, name)
        model = MeteredModel(self._models.get(name), self._caller, self._reservation)
        return cast(ServedModel, model)  # it has whatever the model has

    def card(self, name: str) -> ModelCard:
        """What is known of a model."""
        check_allowed(self._caller, name)
        return self._models.card(name)

    def cards(self) -> list[ModelCard]:
        """Those of the models that the key allows."""
        return [card for card in self._models.cards() if self._caller.key.allows(card.name)]


class MeteredModel:
    """A served model at work for one request of a caller. All else of it is the model's own.

    Tokens are reserved before they are used, and before the request waits for a place. The first
    work of a request must find them there; what else belongs to the same request (its other
    choices, its other texts) is owed where it does not, so that no request fails half-way.
    """

    def __init__(self, model: ServedModel, caller: Principal, reservation: Reservation) -> None:
        self._model = model
        self._caller = caller
        self._reservation = reservation
        self._begun = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def queue_key(self, priority: int) -> QueueKey:
        """The key's, behind whose other requests this one waits."""
        return QueueKey(self._caller.key.digest, self._caller.priority(priority))

    def reserve(self, first: Work) -> None:
        """Reserves what the first work of a request may use. Raises RateLimited."""
        if self._caller.rate_limiter.limits_tokens:
            self._reservation.take(self._cost(first))
            self._begun = True

    def generate(self, request: GenerationRequest) -> AsyncGenerator[list[CompletionDelta], None]:
        """As the model's own, in the key's place and with the key's part of the cache."""
        caller = self._caller
        priority, salt = caller.priority(request.priority), caller.cache_salt(request.cache_salt)
        if priority != request.priority:  # a model that takes none is told none
            request = replace(request, priority=priority)
        if salt != request.cache_salt and self._model.supports("cache_salt"):
            request = replace(request, cache_salt=salt)
        deltas = self._model.generate(request)
        return self._charged(request, deltas) if caller.rate_limiter.limits_tokens else deltas

    async def _charged(
        self, request: GenerationRequest, deltas: AsyncGenerator[list[CompletionDelta], None]
    ) -> AsyncGenerator[list[CompletionDelta], None]:
        """An answer that its client cuts off is charged as it was reserved, or as it was counted if
        that is more. One that fails is charged as counted.
        """
        usage, reserved = request.usage, self._reserve(request)
        failed = False
        try:
            async for burst in deltas:
                yield burst
        except Exception:
            failed = True
            raise
        finally:
            await deltas.aclose()
            prompt_tokens = usage.prompt_tokens or _prompt_tokens(request)
            charged = prompt_tokens * request.sequences + usage.completion_tokens
            if not (failed or usage.finished):
                charged = max(charged, reserved)
            self._reservation.settle(reserved=reserved, used=charged)

    def _cost(self, work: Work) -> int:
        """Tokens that it may use."""
        prompt_tokens = _prompt_tokens(work)
        if not isinstance(work, GenerationRequest):
            return prompt_tokens
        return work.sequences * (prompt_tokens + self._answer_tokens(work, prompt_tokens))

    def _answer_tokens(self, request: GenerationRequest, prompt_tokens: int) -> int:
        asked, context = request.sampling_params.max_tokens, self._model.max_model_len
        fills = asked is None or (context is not None and prompt_tokens + asked >= context)
        if asked is None or fills:
            return DEFAULT_OUTPUT_TOKENS if asked is None else min(asked, DEFAULT_OUTPUT_TOKENS)
        return asked

    async def embed(self, request: EmbedRequest) -> EmbeddingResult:
        """As the model's own."""
        reserved = self._reserve(request)
        result = await self._model.embed(request)
        used = result.prompt_tokens or reserved
        self._reservation.settle(reserved=reserved, used=used)
        return result

    async def score(self, request: ScorePairRequest) -> ScoreResult:
        """As the model's own."""
        reserved = self._reserve(request)
        result = await self._model.score(request)
        used = result.prompt_tokens or reserved
        self._reservation.settle(reserved=reserved, used=used)
        return result

    def _reserve(self, work: Work) -> int:
        """The tokens to settle in the end: those that `reserve` has taken, or its own."""
        tokens = self._reservation.use()
        if not tokens:
            tokens = self._cost(work)
            self._caller.rate_limiter.reserve(tokens, allow_debt=self._begun)
            self._begun = True
        return tokens


def _prompt_tokens(work: Work) -> int:
    """Of a text that only the model itself tokenizes, a guess: four characters each."""
    if isinstance(work, ScorePairRequest) or work.prompt_token_ids is not None:
        return len(work.prompt_token_ids or ())
    return len(work.prompt or "") // 4
