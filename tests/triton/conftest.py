"""The event loops that the core is tested on."""

import asyncio

import pytest
import uvloop

FACTORIES = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
ON_BOTH = ("test_streams.py", "test_cancel.py", "test_stop.py")


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict:
    """uvloop, which the gateway runs on; what depends on the loop's order of callbacks, on asyncio's too."""
    both = item.path.name in ON_BOTH
    return FACTORIES if both else {"uvloop": FACTORIES["uvloop"]}
