import asyncio

import pytest

from openai_frontend.errors import (
    InvalidRequest,
    ModelUnavailable,
    QueueFull,
    QueueTimeout,
    RateLimited,
    ServerOverloaded,
)
from openai_frontend.metrics.gateway import GatewayMetrics
from openai_frontend.middleware.error_responses import ErrorResponses
from openai_frontend.middleware.telemetry import RequestMetrics
from openai_frontend.request_context.context import current_request
from tests.fast.middleware.asgi import call, echo

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
async def test_route_label(method, path, route, label):
    """The label is the route's template, never the client's path."""
    metrics = GatewayMetrics()

    async def app(scope, receive, send):
        current_request().model_name = "m"
        if route is not None:
            scope["route"] = route
        await echo(scope, receive, send)

    scope = {"type": "http", "method": method, "path": path, "headers": []}
    await call(RequestMetrics(app, metrics=metrics, fixed=FIXED), scope=scope)

    assert counted(metrics) == [(label, "m", "200", 1.0)]


async def test_disconnected_client_counts_as_499():
    """The exception propagates."""
    metrics = GatewayMetrics()

    async def app(scope, receive, send):
        raise TimeoutError

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    with pytest.raises(TimeoutError):
        await call(RequestMetrics(app, metrics=metrics, fixed=FIXED), scope=scope)

    assert counted(metrics) == [("none", "", "499", 1.0)]


async def test_gauges_of_running_requests():
    """Requests with a body, and open streams, count until their end."""
    metrics = GatewayMetrics()
    seen = []

    def now():
        names = ("requests_in_progress", "streams_open")
        return [metrics.registry.get_sample_value(f"openai_frontend_{each}") for each in names]

    async def app(scope, receive, send):
        seen.append(now())
        events = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": events})
        seen.append(now())
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await call(RequestMetrics(app, metrics=metrics, fixed=FIXED))

    assert [*seen, now()] == [[1, 0], [1, 1], [0, 0]]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ServerOverloaded("full"), "overloaded"),
        (ModelUnavailable("away"), "model_unavailable"),
        (RateLimited("too many"), "rate_limit"),
        (QueueFull("full"), "queue_full"),
        (QueueTimeout("late"), "queue_timeout"),
        (asyncio.CancelledError(), "draining"),
    ],
)
async def test_rejections_are_counted_by_reason(error, reason):
    """Other errors are not."""
    metrics = GatewayMetrics()

    async def app(scope, receive, send):
        current_request().model_name = "m"
        raise InvalidRequest("wrong") if scope["path"] == "/wrong" else error

    counting = RequestMetrics(ErrorResponses(app), metrics=metrics, fixed=FIXED)
    for path in ("/", "/wrong"):
        await call(counting, scope={"path": path})

    rejected = {
        (sample.labels["model"], sample.labels["reason"]): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "openai_frontend_requests_rejected_total"
    }
    assert rejected == {("m", reason): 1}
