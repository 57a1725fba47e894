"""Fixtures for the gateway on which these tests check the rows of docs/security.md."""

from collections.abc import Iterator

import pytest

from tests.security.guarded import Guarded, guarded_gateway, unharmed


@pytest.fixture(scope="session")
def guarded_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_gateway(tmp_path_factory.mktemp("guarded")) as started:
        yield started


@pytest.fixture
def guarded(guarded_process: Guarded) -> Iterator[Guarded]:
    """Checks after each test that the gateway is unharmed."""
    with unharmed(guarded_process) as each:
        yield each
