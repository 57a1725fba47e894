import pytest


@pytest.fixture(autouse=True)
def _in_a_request(request_context: object) -> None:
    """Each test runs in a request."""
