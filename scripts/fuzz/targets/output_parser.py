"""Model output in every family's syntax.

No text raises, no split changes the result, a complete call's arguments are an object, and the
parser adds nothing to the text.
"""

import json
from typing import Any

from openai_frontend.parsing.family import Family
from openai_frontend.parsing.registry import FAMILIES
from scripts.fuzz.draw import Draw, pieces
from tests.fast.parsing.samples import FILES, Answer, outputs, parser_for, replay
from tests.medium.parsing.test_fuzz import PIECES, markers_of

WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"reasoning_open": True},
    {"reasoning_open": False},
    {"any_call": True},
    {"forced": "now"},
)
_NAMES = [family.name for family in FAMILIES]

WORDS = sorted({*PIECES, *(marker for family in FAMILIES for marker in markers_of(family))})
SEEDS = tuple(
    bytes([_NAMES.index(path.stem), 0, 3]) + output["text"].encode()
    for path in FILES
    if path.stem in _NAMES
    for output in outputs(path)
    if len(output["text"]) < 400
)


def check(data: bytes) -> None:
    draw = Draw(data)
    family, way, seed = draw.choice(FAMILIES), draw.choice(WAYS), draw.byte()
    text = draw.rest().decode(errors="replace")

    whole = _parsed(family, way, [text])
    assert whole == _parsed(family, way, pieces(text, seed))
    assert whole == _parsed(family, way, list(text))
    _check_calls(whole)
    for part in (whole.content, whole.reasoning):
        characters = iter(text)
        assert all(character in characters for character in part)


def _parsed(family: Family, way: dict[str, Any], parts: list[str]) -> Answer:
    return replay(parser_for(family.name, way), parts)


def _check_calls(answer: Answer) -> None:
    for call in answer.calls:
        assert call.name
        assert call.id
        assert call.complete is not None
        if call.complete:
            assert isinstance(json.loads(call.arguments), dict)
