"""Every kept input of every target, once more; `make fuzz` looks for others."""

from collections.abc import Iterator

import pytest

from tests.fuzz import loop, scratch
from tests.fuzz.held import check_of
from tests.fuzz.targets import NAMES, corpus, target


@pytest.fixture(autouse=True, scope="module")
def _nothing_left() -> Iterator[None]:
    yield
    loop.close()
    scratch.remove()


@pytest.mark.parametrize("name", NAMES)
def test_kept_inputs(name: str) -> None:
    """What the fuzzer found worth keeping, and what it starts from, breaks nothing."""
    check = check_of(name)
    kept = corpus(name).values()

    assert kept
    for data in [*kept, *target(name).SEEDS]:
        check(data)
