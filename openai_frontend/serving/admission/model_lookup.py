"""Finds a request's model: by name, or the only suitable one if the request names none."""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from heapq import nlargest
from itertools import pairwise

from openai_frontend.admission.queue import QueueKey
from openai_frontend.errors import InvalidRequest, ModelNotFound
from openai_frontend.models.model_card import ModelCard
from openai_frontend.models.tasks import Capability, exclude
from openai_frontend.serving.admission.authorized_models import ModelProvider
from openai_frontend.serving.admission.model import ServingModel

MAX_LISTED = 10  # names in one message
_MAX_NAME = 128  # characters of a name in a message
# difflib takes 0.2 ms for two similar names, so it compares few names, and only their beginnings
_MAX_LOOKED_AT, _MAX_COMPARED, _MAX_COMPARED_CHARACTERS = 200, 5, 64


async def find_model(
    models: ModelProvider,
    name: str | None,
    capability: Capability | None,
    *,
    may_list: Callable[[], bool],
    load_as: QueueKey | None,
) -> ServingModel:
    """The model. Without a name, the only model, or else the only one with the capability.

    `capability`: what the path needs; None if every model has it. Raises InvalidRequest, without
    a load, if the options of an unloaded model rule it out.
    `may_list`: whether errors may list the models.
    `load_as`: the caller's place among the requests that wait for a model that is loaded on demand;
    None to load none.
    """
    name = name or only_name(models, capability, may_list=may_list)
    try:
        if load_as is not None:
            known = models.unloaded_capabilities(name)
            if known is not None and capability is not None:
                check_capability(name, known, capability)
            await models.ensure_loaded(name, load_as)
        return models.get(name)
    except ModelNotFound as error:
        raise with_known_names(error, models, name) if may_list() else error from None


def check_capability(name: str, capabilities: frozenset[str], capability: Capability) -> None:
    """Raise InvalidRequest if what is known of the model rules the capability out."""
    if not exclude(capabilities, capability):
        return
    if capability == "moderation":
        message = f"The model '{name}' does not moderate: it has no option `moderation`."
    else:
        listed = ", ".join(sorted(capabilities))
        message = f"The model '{name}' does not support '{capability}'. Its capabilities: {listed}."
    raise InvalidRequest(message, param="model", code="unsupported_model")


def known_card(models: ModelProvider, name: str, *, may_list: Callable[[], bool]) -> ModelCard:
    """The model's card, loaded or not. Raises ModelNotFound as `find_model` does."""
    try:
        return models.card(name)
    except ModelNotFound as error:
        raise with_known_names(error, models, name) if may_list() else error from None


def with_known_names(error: ModelNotFound, models: ModelProvider, name: str) -> ModelNotFound:
    """The error with the closest name and some of the available names."""
    known = [card.name for card in models.cards()]
    message = error.message
    if (closest := _closest(name, known)) is not None:
        message += f" Did you mean '{closest[:_MAX_NAME]}'?"
    message += f" Available models: {_listed(known)}." if known else " No model is available."
    return ModelNotFound(message, param=error.param)


def only_name(
    models: ModelProvider, capability: Capability | None, *, may_list: Callable[[], bool]
) -> str:
    """The name of the only model. Aliases and versions belong to their model; an adapter counts
    only if the caller may not use its base model.
    """
    cards = models.cards()
    cards = _able([card for card in cards if card.parent is None] or cards, capability)
    names = [card.name for card in cards]
    own_names = {card.alias_of or card.name for card in cards}
    if len(own_names) != 1:
        raise _which_model(names, may_list=may_list())
    [own_name] = own_names
    return own_name if own_name in names else names[0]


def _able(cards: Sequence[ModelCard], capability: Capability | None) -> Sequence[ModelCard]:
    """The models with the capability or without any, as those that are not loaded; all if none has
    it. For reranking, cross-encoders take precedence over embedding models, and for embeddings
    these over models of tokens' vectors.
    """
    if capability is None:
        return cards
    able = [card for card in cards if capability in card.capabilities or not card.capabilities]
    if capability == "moderation":  # known from the options, whether the model is loaded or not
        able = [card for card in able if card.capabilities]
    if capability == "embeddings":
        able = able or [card for card in cards if "token_embeddings" in card.capabilities]
    if capability == "rerank":
        able = [card for card in able if "embeddings" not in card.capabilities] or able
    return able or cards


def _which_model(names: Sequence[str], *, may_list: bool) -> InvalidRequest:
    message = "Missing required parameter: 'model'."
    if may_list and names:
        message += f" Name one of the available models: {_listed(names)}."
    elif names:
        message += " Several models are available."
    else:
        message += " No model is available."
    return InvalidRequest(message, param="model", code="missing_required_parameter")


def _closest(name: str, known: Sequence[str]) -> str | None:
    """The most similar name, or None."""
    name = name[:_MAX_COMPARED_CHARACTERS]
    pairs = set(pairwise(name))
    beginnings = {each[:_MAX_COMPARED_CHARACTERS]: each for each in known[:_MAX_LOOKED_AT]}
    alike = nlargest(
        _MAX_COMPARED, beginnings, key=lambda each: len(pairs.intersection(pairwise(each)))
    )
    close = get_close_matches(name, alike, n=1)
    return beginnings[close[0]] if close else None


def _listed(names: Sequence[str]) -> str:
    listed = ", ".join(f"'{name[:_MAX_NAME]}'" for name in names[:MAX_LISTED])
    more = len(names) - MAX_LISTED
    return f"{listed} and {more} more (GET /v1/models lists all)" if more > 0 else listed
