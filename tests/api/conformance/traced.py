"""Requests with a marked text in one field, and a model that says whether it is in its prompt."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import mock_models
from tests.api.conformance.endpoints import ENDPOINTS
from tests.fast.prompting import tiny_tokenizer

TRACE = "zebra"
_SHARED = {f"{each.prefix}.{name}" for each in ENDPOINTS for name in each.shared}
SEEN, UNSEEN = "seen", "unseen"
Ask = Callable[[Mapping[str, Any]], httpx.Response]
Body = dict[str, Any]

# Everything that a template can get: an id of a call has no place in Qwen's.
_TEMPLATE = tiny_tokenizer.QWEN.replace("{% if add", "{{ messages | tojson }}{% if add")
_WHOLE_PROMPT = {"user": "<no such text>"}  # not only the last message of the user


def write_model(repository: Path) -> None:
    """Models that say whether the prompt has the trace, one as an error, and one by a letter; and
    one for images.
    """
    words, error = (SEEN, UNSEEN), f"Error: {TRACE}"
    for name, trace, (seen, unseen) in (
        ("traced", TRACE, words), ("errors", error, words), ("decides", TRACE, "BA"),
    ):  # fmt: skip
        turns = [{"contains": trace, "text": seen}, {"text": unseen}]
        mock_models.write_with_turns(
            repository,
            name,
            turns,
            chat_template=_TEMPLATE,
            markers=_WHOLE_PROMPT,
            tasks=["generate"],
        )
    mock_models.write_with_images(repository, "images", tasks=["generate"])


def fields_on_the_way(prefix: str, body: Body) -> list[str]:
    """The names of the fields that contain the trace, from the outermost on."""
    return list(dict.fromkeys(_names(body, prefix, _known(prefix))))


@cache
def _known(prefix: str) -> Mapping[str, bool]:
    """The names of an endpoint's fields, and whether each is a kind of value."""
    [endpoint] = [each for each in ENDPOINTS if each.prefix == prefix]
    fields = [*endpoint.own_fields, *endpoint.sdk_fields]
    return {f"{prefix}.{field.name}": field.kind is not None for field in fields}


def _names(value: Any, name: str, known: Mapping[str, bool]) -> Iterator[str]:
    """As `request_fields` names them: an object's kind is a part of the name."""
    if TRACE not in repr(value):
        return
    if name in known:
        yield name
    if isinstance(value, list):
        for each in value:
            yield from _names(each, name, known)
    if not isinstance(value, dict):
        return
    kinds = (str(value.get("role")), str(value.get("type")))
    kind = next((each for each in kinds if known.get(f"{name}.{each}")), None)
    if kind is not None:
        name = f"{name}.{kind}"
        yield name
    for field, inner in value.items():
        yield from _names(inner, name if field == kind else f"{name}.{field}", known)


def rows(prefix: str, mark: Any, bodies: Sequence[Body]) -> list[Any]:
    """Parameters of a test, each with marks for the fields on the way to the trace."""
    return [_row(mark, fields_on_the_way(prefix, body), body) for body in bodies]


def leaves(prefix: str, mark: Any, bodies: Sequence[Body]) -> list[Any]:
    """Parameters of a test, each with a mark for the field that has the trace.

    Without a mark if another field's members have the trace: they are listed elsewhere.
    """
    return [_row(mark, fields_on_the_way(prefix, body)[-1:], body) for body in bodies]


def _row(mark: Any, names: Sequence[str], body: Body) -> Any:
    marked = [name for name in names if len(names) > 1 or name not in _SHARED]
    return pytest.param(body, marks=mark(*marked), id=names[-1])
