"""The gRPC server: sizes, slow clients, draining, TLS, options, telemetry and reflection."""

import asyncio
import contextlib
import json
import struct
import time
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from openai_frontend.config.grpc_options import GRPC_OPTIONS, channel_arguments
from openai_frontend.kserve.grpc import health
from openai_frontend.kserve.grpc.messages import HEALTH, INFERENCE, methods
from tests.api.kserve.conftest import other_app
from tests.api.kserve.grpc_client import METHODS, RpcClient, request, rpc_client, rpc_server
from tests.api.kserve.stalled_client import StalledClient
from tests.cpu_time import budget

METHOD = methods(INFERENCE)["ModelInfer"]
NOT_SERVING = 2

pytestmark = pytest.mark.asyncio(loop_scope="package")

FLOATS = {"IN": ("FP32", [3], struct.pack("<3f", 1.5, -2, 0.25))}


async def test_message_over_the_limit(kserve):
    """A message of more than max_body_bytes is refused, and the connection still works."""
    many = {"IN": ("FP32", [1000], bytes(4000))}
    async with rpc_client(kserve.app, max_body_bytes=2000) as client:
        code, _ = await client.refusal("ModelInfer", request("one", many))
        response = await client.ask("ModelInfer", request("one", FLOATS))

    assert code == "RESOURCE_EXHAUSTED"
    assert response.model_name == "one"


async def test_metadata_over_the_limit(kserve):
    """Metadata of 1 MB is refused, and the server still works."""
    async with rpc_client(kserve.app) as client:
        client.metadata = (("x", "a" * 1_000_000),)
        code, _ = await client.refusal("ServerLive")
        client.metadata = ()
        assert (await client.ask("ServerLive")).live

    assert code in ("RESOURCE_EXHAUSTED", "UNAVAILABLE")


async def test_garbage_is_no_request(kserve):
    """Bytes that are not the message fail as such, not as a crash."""
    async with rpc_server(kserve.app) as address, grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(f"/{INFERENCE}/ModelInfer")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call(b"\xff\xff\xff")

    assert failed.value.code().name == "INVALID_ARGUMENT"
    assert failed.value.details() == "The message is not a valid ModelInferRequest."


async def test_slow_client_is_cancelled(kserve):
    """A client that reads nothing is cancelled after send_timeout_s: its request ends."""
    element = struct.pack("<I", 20_000) + b"61" * 10_000
    sent = request("parts", {"IN": ("BYTES", [200], element * 200)})
    slow = kserve.app.state.gateway.metrics.registry.get_sample_value
    name = "openai_frontend_slow_clients_disconnected_total"
    before = slow(name)
    async with rpc_client(kserve.app, send_timeout_s=0.2) as client:
        call = client.stream([sent])
        await call.wait_for_connection()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                while slow(name) == before:  # noqa: ASYNC110  no event tells
                    await asyncio.sleep(0.01)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            async for _ in call:
                pass

    assert slow(name) == before + 1
    assert failed.value.code().name == "CANCELLED"
    assert "0.2 s" in (failed.value.details() or "")


async def test_unread_responses_are_limited(kserve):
    """Beyond stream_buffer_bytes, the stream of a slow client ends with CANCELLED."""
    element = struct.pack("<I", 20_000) + b"61" * 10_000
    sent = request("parts", {"IN": ("BYTES", [200], element * 200)})
    async with rpc_client(kserve.app, stream_buffer_bytes=65536) as client:
        call = client.stream([sent])
        await asyncio.sleep(0.5)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            async for _ in call:
                pass

    assert failed.value.code().name == "CANCELLED"
    assert "65536 bytes" in (failed.value.details() or "")


def disconnected(kserve) -> float:
    value = kserve.app.state.gateway.metrics.registry.get_sample_value(
        "openai_frontend_slow_clients_disconnected_total"
    )
    assert value is not None
    return float(value)


TEXT = struct.pack("<I", 4) + b"6162"
STALLED = {
    "ModelInfer": request("one", FLOATS),
    "ModelStreamInfer": request("parts", {"IN": ("BYTES", [1], TEXT)}),
    "ServerLive": METHODS["ServerLive"].request(),
}


@pytest.mark.parametrize("name", STALLED)
async def test_unread_response_ends_its_connection(kserve, name):
    """A client whose HTTP/2 windows are 0 is disconnected after send_timeout_s, which frees the
    response, and is counted once; a call that fails is no exception. Other connections stay.
    """
    before = disconnected(kserve)
    async with (
        rpc_server(kserve.app, send_timeout_s=0.2) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        calls = [
            await StalledClient.calling(address, METHODS[name].path, message.SerializeToString())
            for message in (STALLED[name], STALLED[name])
        ]
        sent = await asyncio.wait_for(asyncio.gather(*[each.closed() for each in calls]), 20)
        response = await RpcClient(channel).ask("ModelInfer", request("one", FLOATS))

    assert not [each for each in sent if b"grpc-status" in each]
    assert response.model_name == "one"
    assert disconnected(kserve) == before + 2


async def test_timeout_of_the_server(kserve):
    """A request of a stream that takes longer than request_timeout_s ends with an error."""
    text = struct.pack("<I", 3) + b"a b"
    inputs = {"text_input": ("BYTES", [1], text), "stream": ("BOOL", [1], b"\x01")}
    async with rpc_client(kserve.app, request_timeout_s=0.2) as client:
        found = [each async for each in client.stream([request("slow", inputs)])]

    assert found[0].infer_response.outputs
    assert "timed out" in found[-1].error_message


def many_parameters(count: int) -> Any:
    sent = METHOD.request()
    for number in range(count):
        sent.parameters[str(number)].bool_param = True
    return sent


def bomb_of_an_output(count: int) -> bytes:
    sent = METHOD.request()
    output = sent.outputs.add(name="OUT")
    for number in range(count):
        output.parameters[str(number)].bool_param = True
    serialized: bytes = sent.SerializeToString()
    return serialized


BOMBS = {
    "empty inputs": b"\x2a\x00" * 1_000_000,
    "raw tensors": b"\x3a\x01a" * 1_000_000,
    "parameters": many_parameters(9000).SerializeToString(),
    "elements": METHOD.request(
        inputs=[{"name": "IN", "contents": {"bytes_contents": [b""] * 9000}}]
    ).SerializeToString(),
    "integers": METHOD.request(
        inputs=[{"name": "IN", "contents": {"int_contents": [1] * 1_100_000}}]
    ).SerializeToString(),
    "parameters of an output": bomb_of_an_output(9000),
}


@pytest.mark.parametrize("name", BOMBS)
async def test_message_bombs(kserve, name):
    """Messages that would take long to parse are refused before, with what to send instead."""
    async with rpc_server(kserve.app) as address, grpc.aio.insecure_channel(address) as channel:
        started_s = time.thread_time()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await channel.unary_unary(METHOD.path)(BOMBS[name])
        taken_s = time.thread_time() - started_s

    assert failed.value.code().name == "INVALID_ARGUMENT"
    assert "raw_input_contents" in (failed.value.details() or "")
    assert taken_s < budget(0.03)


@pytest.mark.parametrize("name", ["ModelMetadata", "RepositoryIndex"])
async def test_bombs_of_other_methods(kserve, name):
    """The number of fields is limited in every message."""
    path = methods(INFERENCE)[name].path
    async with rpc_server(kserve.app) as address, grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await channel.unary_unary(path)(b"\xa0\x06\x00" * 1_000_000)

    assert failed.value.code().name == "INVALID_ARGUMENT"


async def test_bomb_of_trace_settings(kserve):
    """The elements of a setting are counted too."""
    async with rpc_client(kserve.app) as client:
        settings = {"trace_level": {"value": [""] * 9000}}
        code, details = await client.refusal("TraceSetting", settings=settings)

    assert (code, details) == ("INVALID_ARGUMENT", "The message has more than 8192 fields.")


async def test_message_that_never_arrives(kserve):
    """The call ends, although gRPC itself would wait: it takes one of the server's calls."""
    endless = asyncio.Event()

    async def nothing():
        await endless.wait()
        yield b""

    async with (
        rpc_server(kserve.app, body_timeout_s=0.2) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        for method in ("ModelInfer", "ServerLive"):
            call = channel.stream_unary(methods(INFERENCE)[method].path)(nothing())
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await asyncio.wait_for(call, 10)
            assert failed.value.code().name == "DEADLINE_EXCEEDED"
        empty = channel.stream_unary(METHOD.path)(iter(()))
        with pytest.raises(grpc.aio.AioRpcError, match="no message"):
            await empty


def watch(channel):
    method = methods(HEALTH)["Watch"]
    return channel.unary_stream(method.path, None, method.response.FromString)(b"")


async def test_watches_are_limited_and_end(kserve, monkeypatch):
    """They need no key; a shutdown does not wait for them, as it does for other calls."""
    monkeypatch.setattr(health, "MAX_WATCHES", 2)
    monkeypatch.setattr(health, "_POLL_S", 0.01)
    async with (
        other_app(kserve) as app,
        rpc_server(app.app) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        first, second = watch(channel), watch(channel)
        statuses = [(await each.read()).status for each in (first, second)]
        with pytest.raises(grpc.aio.AioRpcError, match="watch the server's health already"):
            await watch(channel).read()
        second.cancel()
        app.app.state.gateway.drain_state.drain()
        left = await asyncio.wait_for(_rest(first), 10)

    assert (len(statuses), statuses[0]) == (2, statuses[1])
    assert {*left} <= {NOT_SERVING}


async def _rest(call):
    left = []
    while (each := await call.read()) is not grpc.aio.EOF:
        left.append(each.status)
    return left


async def test_access_log_has_the_clients_ipv6_address(kserve, caplog):
    """gRPC escapes the brackets of such an address."""
    caplog.set_level("INFO", "openai_frontend.access_log")
    async with rpc_server(kserve.app, host="::1", access_log=True) as address:
        port = address.rpartition(":")[2]
        async with grpc.aio.insecure_channel(f"[::1]:{port}") as channel:
            await RpcClient(channel).ask("ServerLive")

    (line,) = (each.getMessage() for each in caplog.records if "ServerLive" in each.getMessage())
    assert "::1" in line
    assert "%5B" not in line


async def test_calls_are_counted_by_method(kserve):
    """The metrics name the method as the route, with HTTP's status, and the model."""
    value = kserve.app.state.gateway.metrics.registry.get_sample_value
    labels = {"route": f"/{INFERENCE}/ModelInfer", "api": "", "model": "one", "status": "200"}
    before = value("openai_frontend_requests_total", labels) or 0
    async with rpc_client(kserve.app) as client:
        await client.ask("ModelInfer", request("one", FLOATS))
        trailing = [*await client.calls[-1].trailing_metadata()]

    assert value("openai_frontend_requests_total", labels) == before + 1
    assert dict(trailing)["x-request-id"].startswith("req_")


async def test_clients_request_id(kserve):
    """The client's x-request-id comes back, also with an error."""
    async with rpc_client(kserve.app) as client:
        client.metadata = (("x-request-id", "mine"),)
        await client.refusal("ModelMetadata", name="absent")
        trailing = [*await client.calls[-1].trailing_metadata()]

    assert dict(trailing)["x-request-id"] == "mine"


def credentials(authority: trustme.CA, certificate: trustme.LeafCert | None = None):
    key = chain = None
    if certificate is not None:
        key = certificate.private_key_pem.bytes()
        chain = certificate.cert_chain_pems[0].bytes()
    return grpc.ssl_channel_credentials(authority.cert_pem.bytes(), key, chain)


async def live(address: str, given: grpc.ChannelCredentials) -> bool:
    async with grpc.aio.secure_channel(address, given) as channel:
        return bool((await RpcClient(channel).ask("ServerLive")).live)


async def test_mutual_tls_and_a_new_certificate(kserve, tmp_path):
    """Only clients with a certificate get in, and a changed file applies to new connections."""
    old, new, clients = trustme.CA(), trustme.CA(), trustme.CA()
    file, ca = tmp_path / "server.pem", tmp_path / "clients.pem"
    old.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(file)
    clients.cert_pem.write_to_path(ca)
    mine = clients.issue_cert("me")
    async with rpc_server(kserve.app, tls_certificate=file, tls_client_ca=ca) as address:
        first = await live(address, credentials(old, mine))
        with pytest.raises(grpc.aio.AioRpcError):
            await live(address, credentials(old))
        new.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(file)
        second = await live(address, credentials(new, mine))
        file.write_text("broken")
        third = await live(address, credentials(new, mine))

    assert (first, second, third) == (True, True, True)


@pytest.mark.parametrize("mutual", [False, True])
async def test_own_tls(kserve, tmp_path, mutual):
    """tritonserver's options give gRPC a certificate that HTTP does not have, and without mutual
    TLS the authorities of clients are not read."""
    authority, clients = trustme.CA(), trustme.CA()
    issued, mine = authority.issue_cert("127.0.0.1"), clients.issue_cert("me")
    cert, key, ca = (tmp_path / name for name in ("cert.pem", "key.pem", "ca.pem"))
    cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(key)
    clients.cert_pem.write_to_path(ca)
    options = {"grpc-use-ssl-mutual" if mutual else "grpc-use-ssl": "true",
               "grpc-server-cert": str(cert), "grpc-server-key": str(key),
               "grpc-root-cert": str(ca)}  # fmt: skip
    async with rpc_server(kserve.app, triton_option=options) as address:
        with_certificate = await live(address, credentials(authority, mine))
        if mutual:
            with pytest.raises(grpc.aio.AioRpcError):
                await live(address, credentials(authority))
        else:
            assert await live(address, credentials(authority))
        with pytest.raises(grpc.aio.AioRpcError):
            async with grpc.aio.insecure_channel(address) as channel:
                await RpcClient(channel).ask("ServerLive")

    assert with_certificate


async def test_reflection(kserve):
    """Server reflection lists the services, and is off by default."""
    async with (
        rpc_server(kserve.app, triton_option={"grpc-reflection": "true"}) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        listing = reflection_pb2.ServerReflectionRequest(list_services="")
        answers = [each async for each in stub.ServerReflectionInfo(iter([listing]))]

    names = {each.name for each in answers[0].list_services_response.service}
    assert names > {INFERENCE, HEALTH}


async def test_options_have_tritonservers_defaults():
    """Options of connections reach gRPC under its own names."""
    found = dict(channel_arguments({"grpc-keepalive-time": ["1000"]}))

    assert found["grpc.keepalive_time_ms"] == 1000
    assert found["grpc.keepalive_timeout_ms"] == 20000
    assert found["grpc.http2.max_ping_strikes"] == 2
    assert json.dumps(found)
    assert {option.setter for option in GRPC_OPTIONS.values()} - {""} >= found.keys()


async def test_max_connection_age(kserve):
    """A connection of that age is closed, and the client opens another one."""
    options = {"grpc-max-connection-age": "200", "grpc-max-connection-age-grace": "200"}
    async with rpc_client(kserve.app, triton_option=options) as client:
        states = [client.channel.get_state(try_to_connect=True)]
        await client.ask("ServerLive")
        async with asyncio.timeout(10):
            while grpc.ChannelConnectivity.IDLE not in states[1:]:
                await client.channel.wait_for_state_change(states[-1])
                states.append(client.channel.get_state())
        assert (await client.ask("ServerLive")).live
