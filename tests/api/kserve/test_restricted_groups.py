"""Restricted groups of gRPC's methods, over the real server."""

import asyncio
import struct

import grpc
import pytest

from openai_frontend.config.restricted_groups import GROUPS
from openai_frontend.kserve.grpc import service
from openai_frontend.kserve.grpc.messages import INFERENCE, methods
from tests.api.kserve.conftest import other_app
from tests.api.kserve.grpc_client import METHODS, RpcClient, request, rpc_client
from tests.uvicorn_server import serving

pytestmark = pytest.mark.asyncio(loop_scope="package")

KEY = "triton-grpc-protocol-team"
TEXT = f"This protocol is restricted, expecting header '{KEY}'"
ALL = {"grpc-restricted-protocol": [f"{','.join(GROUPS)}:team=secret"]}
RIGHT = ((KEY, "secret"),)
WRONG = [(), ((KEY, "secre"),), ((KEY, "SECRET"),), (("team", "secret"),)]


def numbers():
    return request("one", {"IN": ("FP32", [3], struct.pack("<3f", 1, 2, 3))})


async def test_every_method_has_a_group(kserve):
    """A new one cannot be forgotten."""
    assert service.GROUPS.keys() == methods(INFERENCE).keys()
    assert set(service.GROUPS.values()) == set(GROUPS)


@pytest.mark.parametrize("metadata", WRONG, ids=str)
async def test_every_method_needs_the_metadata(kserve, metadata):
    """UNAVAILABLE with tritonserver's text, also from grpc.health.v1.Health."""
    single = [name for name, method in METHODS.items() if not method.server_streams]
    async with rpc_client(kserve.app, triton_option=ALL) as rpc:
        client = RpcClient(rpc.channel, metadata)
        got = {name: await client.refusal(name) for name in single}
        with pytest.raises(grpc.aio.AioRpcError) as stream:
            [each async for each in client.stream([numbers()])]

    assert set(got.values()) == {("UNAVAILABLE", TEXT)}
    assert (stream.value.code().name, stream.value.details()) == ("UNAVAILABLE", TEXT)


async def test_right_metadata_opens(kserve):
    """Once for all requests of a stream."""
    async with rpc_client(kserve.app, triton_option=ALL) as rpc:
        client = RpcClient(rpc.channel, RIGHT)
        live = await client.ask("ServerLive")
        single = await client.ask("ModelInfer", numbers())
        streamed = [each.error_message async for each in client.stream([numbers(), numbers()])]

    assert live.live
    assert single.model_name == "one"
    assert streamed == ["", ""]


async def test_other_groups_stay_open(kserve):
    options = {"grpc-restricted-protocol": ["inference:team=secret"]}
    async with rpc_client(kserve.app, triton_option=options) as rpc:
        live = await rpc.ask("ServerLive")
        refused = await rpc.refusal("ModelInfer", numbers())

    assert live.live
    assert refused == ("UNAVAILABLE", TEXT)


async def test_pipelined_requests_are_checked_one_by_one(kserve):
    """A request that follows an allowed one on the connection needs the header too."""
    options = {"http-restricted-api": ["health:k=v"]}
    ok = "GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nK: v\r\n\r\n"
    bare = "GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with other_app(kserve, triton_option=options) as app, serving(app.app) as (_, address):
        answers = await _exchange(*address, ok + bare + ok)

    assert [line.split()[1] for line in answers] == ["200", "403", "200"]


async def _exchange(host: str, port: int, text: str) -> list[str]:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(text.encode())
    lines: list[str] = []
    while len(lines) < 3:
        line = (await asyncio.wait_for(reader.readline(), 30)).decode()
        assert line, lines
        at = line.find("HTTP/1.1 ")
        lines += [line[at:]] if at >= 0 else []
    writer.close()
    return lines
