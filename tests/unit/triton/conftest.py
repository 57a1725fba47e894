"""The event loops that the core is tested on."""

import asyncio
from typing import Any

import pytest
import uvloop

FACTORIES = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
ON_BOTH = ("test_streams.py", "test_cancel.py")


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Any]:
    """uvloop, as the gateway; where the order of callbacks matters, asyncio's loop too."""
    both = item.path.name in ON_BOTH
    return FACTORIES if both else {"uvloop": FACTORIES["uvloop"]}
