"""The held loads of tests/api/models."""

from tests.api.models.conftest import held_loads

__all__ = ["held_loads"]
