"""The gateway of the model tests."""

from tests.unit.models.conftest import live_gateway

__all__ = ["live_gateway"]
