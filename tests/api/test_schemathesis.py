"""Requests generated from our OpenAPI document: no 5xx, and only documented responses."""

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

from tests.examples import scaled
from tests.gateway_process import GatewayProcess

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]

# the subject of any request
REQUIRED = {
    "model", "messages", "prompt", "input", "tokens", "query", "documents", "texts", "text_1",
    "text_2",
}  # fmt: skip
BOUNDED = settings(max_examples=scaled(15), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def document(mock_gateway: GatewayProcess) -> Any:
    return schemathesis.openapi.from_url(f"{mock_gateway.url}/openapi.json")


@pytest.mark.slow
def test_responses_match_the_document(document, subtests):
    """Every endpoint answers requests of the document as the document says."""
    for found in document.get_all_operations():
        operation = found.ok()
        with subtests.test(operation.label):
            check_operation(operation)


def check_operation(operation: Any) -> None:
    """Valid and invalid requests of one operation."""

    @BOUNDED
    @given(
        case=operation.as_strategy() | operation.as_strategy(GenerationMode.NEGATIVE),
        kept=st.integers(0, 4),
    )
    def check(case: Any, kept: int) -> None:
        case.body = bodies_that_go_far(case.body, kept)
        response = case.call(timeout=120)
        if not streams(response):
            case.validate_response(response, checks=CHECKS)

    check()


def bodies_that_go_far(body: Any, kept: int) -> Any:
    """Sets an existing model, without which every request would fail early, and omits most optional
    fields, because some two of them always contradict each other.
    """
    if not isinstance(body, dict):
        return body
    optional = [name for name in body if name not in REQUIRED]
    thinned = {name: body[name] for name in body if name in REQUIRED or name in optional[:kept]}
    return {**thinned, "model": "mock"} if isinstance(body.get("model"), str) else thinned


def streams(response: Any) -> bool:
    """An event stream is not JSON; tests/stream_rules.py has its rules."""
    kind: str = response.headers.get("content-type", [""])[0]
    return kind.startswith("text/event-stream")
