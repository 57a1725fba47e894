"""Each test runs in a request, as those of tests/fast/serving do."""

from tests.fast.serving.conftest import _in_a_request

__all__ = ["_in_a_request"]
