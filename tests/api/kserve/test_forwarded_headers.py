"""Headers that become parameters of the model: HTTP's and gRPC's, with patterns of their own."""

import json
import struct

import pytest

from tests.api.kserve.conftest import other_app
from tests.api.kserve.grpc_client import RpcClient, request, rpc_client

pytestmark = pytest.mark.asyncio(loop_scope="package")

THREE = {"name": "IN", "shape": [3], "datatype": "FP32", "data": [1, 2, 3]}
SAID = {"outputs": [{"name": "parameters"}]}
HEADERS = {"X-User": "ann", "x-user-agent": "b", "User-Agent": "c", "authorization": "Bearer d"}


async def test_parameters_from_http(kserve):
    """A header wins over the request's own parameter; without the option there are none."""
    body = {"inputs": [THREE], "parameters": {"x-user": "eve", "own": 1}, **SAID}
    options = {"http-header-forward-pattern": "x-user|authorization"}
    path = "/v2/models/one/infer"
    async with other_app(kserve, triton_option=options) as forwarding:
        response = await forwarding.client.post(path, json=body, headers=HEADERS)
        other = await forwarding.client.get("/v2/models/one", headers=HEADERS)
    plain = await kserve.client.post(path, json=body, headers=HEADERS)

    found = [json.loads(each.json()["outputs"][0]["data"][0]) for each in (response, plain)]
    assert found == [{"x-user": "ann", "own": 1}, {"x-user": "eve", "own": 1}]
    assert other.status_code == 200


async def test_parameters_from_grpc(kserve):
    """Of the call's metadata, for each request of a stream too."""
    sent = request("one", {"IN": ("FP32", [3], struct.pack("<3f", 1, 2, 3))})
    sent.outputs.add(name="parameters")
    options = {"grpc-header-forward-pattern": "x-user"}
    async with rpc_client(kserve.app, triton_option=options) as rpc:
        client = RpcClient(rpc.channel, (("x-user", "ann"), ("x-other", "b")))
        single = await client.ask("ModelInfer", sent)
        streamed = [each.infer_response async for each in client.stream([sent, sent])]

    texts = [each.raw_output_contents[0][4:] for each in (single, *streamed)]
    assert [json.loads(text) for text in texts] == [{"x-user": "ann"}] * 3
