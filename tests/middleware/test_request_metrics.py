import pytest

from openai_frontend.metrics.gateway import GatewayMetrics
from openai_frontend.middleware.request_metrics import RequestMetrics
from tests.middleware.asgi import call, echo

FIXED = {("POST", "/v1/chat/completions")}


class Route:
    path = "/v1/models/{id:path}"


def counted(metrics):
    """Route, model and status of each request."""
    return [
        (sample.labels["route"], sample.labels["model"], sample.labels["status"], sample.value)
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "openai_frontend_requests_total"
    ]


@pytest.mark.parametrize(
    ("method", "path", "route", "label"),
    [
        ("POST", "/v1/chat/completions", None, "/v1/chat/completions"),
        ("GET", "/v1/models/secret", Route, "/v1/models/{id:path}"),
        ("GET", "/v1/chat/completions", None, "none"),
        ("POST", "/made-up/by/a/client", None, "none"),
    ],
)
async def test_route(method, path, route, label):
    """The label is the route as it is written, never what a client wrote."""
    metrics = GatewayMetrics()

    async def app(scope, receive, send):
        scope["state"]["model"] = "m"
        if route is not None:
            scope["route"] = route
        await echo(scope, receive, send)

    scope = {"type": "http", "method": method, "path": path, "headers": [], "state": {}}
    await call(RequestMetrics(app, metrics=metrics, fixed=FIXED), scope=scope)

    assert counted(metrics) == [(label, "m", "200", 1.0)]


async def test_a_client_that_goes_away():
    """A request that nobody waited for is counted as 499, and what it raised goes on."""
    metrics = GatewayMetrics()

    async def app(scope, receive, send):
        raise TimeoutError

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "state": {}}
    with pytest.raises(TimeoutError):
        await call(RequestMetrics(app, metrics=metrics, fixed=FIXED), scope=scope)

    assert counted(metrics) == [("none", "", "499", 1.0)]
