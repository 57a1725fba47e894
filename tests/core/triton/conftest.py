"""The event loops of the core's tests."""

import asyncio
from typing import Any

import pytest
import uvloop

FACTORIES = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
ON_BOTH = ("test_streams.py", "test_cancel.py")


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Any]:
    """uvloop, as in the gateway; asyncio's loop too if the order of callbacks matters."""
    both = item.path.name in ON_BOTH
    return FACTORIES if both else {"uvloop": FACTORIES["uvloop"]}
