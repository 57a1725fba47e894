from collections.abc import Iterator

import pytest

from openai_frontend.request_context.context import RequestContext, current


@pytest.fixture(autouse=True)
def request_context() -> Iterator[RequestContext]:
    """The context of a request without a key, in which each test runs."""
    context = RequestContext("req_1")
    token = current.set(context)
    yield context
    current.reset(token)
    context.end()
