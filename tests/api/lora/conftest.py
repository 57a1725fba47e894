"""The gateway of the model tests."""

from tests.api.models.conftest import live_gateway

__all__ = ["live_gateway"]
