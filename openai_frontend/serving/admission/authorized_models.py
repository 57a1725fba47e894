"""The models that one caller may use."""

from collections.abc import Sequence
from typing import Protocol

from openai_frontend.admission.queue import ANONYMOUS, QueueKey
from openai_frontend.auth.api_keys import Principal
from openai_frontend.errors import ModelHidden
from openai_frontend.models.model_card import ModelCard
from openai_frontend.serving.admission.model import ServingModel


class ModelProvider(Protocol):
    """The part of the registry that requests need."""

    async def ensure_loaded(self, name: str, queue_key: QueueKey = ANONYMOUS) -> None:
        """Load the model if models are loaded on demand, waiting for it by `queue_key`."""

    def unloaded_capabilities(self, name: str) -> frozenset[str] | None:
        """Capabilities of a model that `ensure_loaded` would load; None for others."""

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
    """The models that the caller's key allows."""

    def __init__(self, models: ModelProvider, caller: Principal) -> None:
        self._models = models
        self._caller = caller

    async def ensure_loaded(self, name: str, queue_key: QueueKey = ANONYMOUS) -> None:
        """Load a model only for callers that may use it."""
        check_allowed(self._caller, name)
        await self._models.ensure_loaded(name, queue_key)

    def unloaded_capabilities(self, name: str) -> frozenset[str] | None:
        check_allowed(self._caller, name)
        return self._models.unloaded_capabilities(name)

    def get(self, name: str) -> ServingModel:
        check_allowed(self._caller, name)
        return self._models.get(name)

    def card(self, name: str) -> ModelCard:
        check_allowed(self._caller, name)
        return self._models.card(name)

    def cards(self) -> list[ModelCard]:
        return [card for card in self._models.cards() if self._caller.key.allows(card.name)]
