"""Requests made from our own OpenAPI document: no 5xx, no answer outside the document."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.gateway_process import GatewayProcess

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]

# of any request: what it is about
REQUIRED = {
    "model", "messages", "prompt", "input", "tokens", "query", "documents", "texts", "text_1",
    "text_2",
}  # fmt: skip
BOUNDED = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def document(mock_gateway: GatewayProcess) -> Any:
    return schemathesis.openapi.from_url(f"{mock_gateway.url}/openapi.json")


def test_answers_keep_to_the_document(document, subtests):
    """What the document admits is answered as the document says, at every endpoint."""
    for found in document.get_all_operations():
        operation = found.ok()
        with subtests.test(operation.label):
            check_operation(operation)


def check_operation(operation: Any) -> None:
    """Some requests of one operation, sound and less so."""

    @BOUNDED
    @given(
        case=operation.as_strategy() | operation.as_strategy(GenerationMode.NEGATIVE),
        kept=st.integers(0, 4),
    )
    def check(case: Any, kept: int) -> None:
        case.body = bodies_that_go_far(case.body, kept)
        response = case.call(timeout=30)
        if not streams(response):
            case.validate_response(response, checks=CHECKS)

    check()


def bodies_that_go_far(body: Any, kept: int) -> Any:
    """Names a model that exists, or nothing behind the name is ever tried; and leaves most optional
    fields away, or some two of them always contradict each other.
    """
    if not isinstance(body, dict):
        return body
    optional = [name for name in body if name not in REQUIRED]
    thinned = {name: body[name] for name in body if name in REQUIRED or name in optional[:kept]}
    return {**thinned, "model": "mock"} if isinstance(body.get("model"), str) else thinned


def streams(response: Any) -> bool:
    """An event stream is no JSON; its rules are in tests/stream_rules.py."""
    kind: str = response.headers.get("content-type", [""])[0]
    return kind.startswith("text/event-stream")
