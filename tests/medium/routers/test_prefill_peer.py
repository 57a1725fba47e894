"""The header with which a router chooses a prefill server."""

from typing import Any

import pytest

from openai_frontend.errors import InvalidRequest
from openai_frontend.middleware.chosen_prefill_peer import HEADER, ChosenPrefillPeer
from openai_frontend.request_context.context import current_request
from tests.fast.middleware.asgi import call, echo

seen: list[str | None] = []


async def recording(scope: Any, receive: Any, send: Any) -> None:
    seen.append(current_request().prefill_peer)
    await echo(scope, receive, send)


APP = ChosenPrefillPeer(recording, addresses=["a:1", "b:2"])


@pytest.mark.parametrize(("values", "peer"), [([], None), ([b"a:1"], "a:1"), ([b"b:2"], "b:2")])
async def test_listed_server_is_chosen(values: list[bytes], peer: str | None) -> None:
    """Without the header, the decode server chooses."""
    seen.clear()
    response = await call(APP, headers=[(HEADER, value) for value in values])

    assert (response.status, seen) == (200, [peer])


@pytest.mark.parametrize(
    "values", [[b"c:3"], [b""], [b"A:1"], [b"http://a:1"], [b"a:1", b"b:2"], [b"\xff:1"]]
)
async def test_other_server_is_refused(values: list[bytes]) -> None:
    """By name; nothing of the request is done."""
    seen.clear()
    with pytest.raises(InvalidRequest) as refused:
        await call(APP, headers=[(HEADER, value) for value in values])

    assert (refused.value.param, seen) == ("x-prefiller-host-port", [])
    assert values[0].decode("latin-1") in refused.value.message
