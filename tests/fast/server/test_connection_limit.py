"""The connection limit, tested without opening connections."""

import pytest

from openai_frontend.middleware.trusted_hosts import HEALTH_PATHS
from openai_frontend.server.limits import ConnectionLimit
from tests.fast.middleware.asgi import call, echo


async def status(path: str) -> int:
    return (await call(ConnectionLimit(echo, 1, "/llm"), scope={"path": path})).status


@pytest.mark.parametrize("path", sorted(HEALTH_PATHS))
async def test_health_checks_pass(path):
    """Also below the root path, and with a trailing slash."""
    assert [await status(each) for each in (path, f"/llm{path}", f"{path}/")] == [200] * 3


@pytest.mark.parametrize("path", ["/", "/v1/models", "/llm/v1/models", "/x/health", "/health/x"])
async def test_other_requests_get_503(path):
    """Also paths that resemble a health check."""
    assert await status(path) == 503
