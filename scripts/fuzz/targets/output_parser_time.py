"""Parsing takes linear time.

Eight times as many repetitions of any short unit take about eight times as long, whole and in
pieces as small as tokens.
"""

import time

from openai_frontend.parsing.family import Family
from openai_frontend.parsing.registry import FAMILIES
from scripts.fuzz.draw import Draw
from scripts.fuzz.targets import output_parser
from tests.cpu_time import budget
from tests.fast.parsing.samples import parser_for

_SHORT, _LONG = 1_000, 8_000
_PIECES = (3, _LONG)
_GROWTH = 24  # quadratic time would give 64
_TRIES = 4  # a pause of the machine is not a finding

WORDS = output_parser.WORDS
SEEDS = tuple(
    bytes([at, way, piece]) + b'{"name":' for at in range(len(FAMILIES)) for way, piece in [(0, 0)]
)


def check(data: bytes) -> None:
    draw = Draw(data)
    family, way = draw.choice(FAMILIES), draw.choice(output_parser.WAYS)
    piece = draw.choice(_PIECES)
    unit = draw.rest()[:64].decode(errors="replace")
    if not unit:
        return
    tries = (_growth(family, way, unit, piece) for _ in range(_TRIES))
    assert any(longer <= 0 for longer in tries), (family.name, way, unit, piece)


def _growth(family: Family, way: dict[str, object], unit: str, piece: int) -> float:
    """Return by how many seconds of CPU time the long text exceeds its bound."""
    short, long = (_seconds(family, way, unit, length, piece) for length in (_SHORT, _LONG))
    return long - _GROWTH * short - budget(0.05)


def _seconds(family: Family, way: dict[str, object], unit: str, length: int, piece: int) -> float:
    text = (unit * (length // len(unit) + 1))[:length]
    parser = parser_for(family.name, way)
    start = time.process_time()
    for at in range(0, length, piece):
        parser.feed(text[at : at + piece])
    parser.finish()
    return time.process_time() - start
