"""The list of models in Anthropic's form, for clients that send `anthropic-version`."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from openai_frontend.errors import InvalidRequest
from openai_frontend.models.model_card import ModelCard
from schemas.messages import AnthropicModel, AnthropicModelList

_DEFAULT_LIMIT, _MAX_LIMIT = 20, 1000


def anthropic_model(card: ModelCard) -> AnthropicModel:
    """A model without a limit may fill its context with output."""
    facts = card.facts
    created = datetime.fromtimestamp(card.created, UTC)
    return AnthropicModel(
        id=card.name,
        display_name=card.name,
        created_at=created.isoformat(timespec="seconds").replace("+00:00", "Z"),
        max_input_tokens=facts.max_model_len,
        max_tokens=card.max_output_tokens or facts.max_model_len,
    )


def anthropic_page(cards: Sequence[ModelCard], query: Mapping[str, str]) -> AnthropicModelList:
    """The models after `after_id` or before `before_id`, at most `limit`.

    Raises InvalidRequest for other values.
    """
    limit = _limit(query.get("limit"))
    names = [card.name for card in cards]
    start, end = 0, len(names)
    if (after := query.get("after_id")) is not None:
        start = _index(names, after, "after_id") + 1
    if (before := query.get("before_id")) is not None:
        end = _index(names, before, "before_id")
        start = max(start, end - limit)
    page = cards[start : min(end, start + limit)]
    more = start > 0 if before is not None else start + len(page) < end
    return AnthropicModelList(
        data=[anthropic_model(card) for card in page],
        has_more=more,
        first_id=page[0].name if page else None,
        last_id=page[-1].name if page else None,
    )


def _limit(text: str | None) -> int:
    if text is None:
        return _DEFAULT_LIMIT
    if text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= _MAX_LIMIT:
        return int(text)
    message = f"Invalid 'limit': expected an integer from 1 to {_MAX_LIMIT}."
    raise InvalidRequest(message, param="limit")


def _index(names: Sequence[str], name: str, param: str) -> int:
    if name not in names:
        raise InvalidRequest(f"Invalid '{param}': no model has this id.", param=param)
    return names.index(name)
