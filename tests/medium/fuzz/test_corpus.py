"""Replays every stored input of every target; `make fuzz` searches for new ones."""

from collections.abc import Iterator

import pytest

from scripts.fuzz import loop, scratch
from scripts.fuzz.held import check_of
from scripts.fuzz.targets import NAMES, corpus, target


@pytest.fixture(autouse=True, scope="module")
def _nothing_left() -> Iterator[None]:
    yield
    loop.close()
    scratch.remove()


@pytest.mark.parametrize("name", NAMES)
def test_stored_inputs_pass(name: str) -> None:
    """No stored input and no seed breaks its target."""
    check = check_of(name)
    kept = corpus(name).values()

    assert kept
    for data in [*kept, *target(name).SEEDS]:
        check(data)
