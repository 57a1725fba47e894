"""Triton's trace mode `triton` over HTTP and gRPC: files, and settings while the server runs."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.api.kserve.conftest import other_app
from tests.api.kserve.grpc_client import RpcClient, request, rpc_client

pytestmark = pytest.mark.asyncio(loop_scope="package")

PATH = "/v2/trace/setting"
THREE = {"inputs": [{"name": "IN", "shape": [3], "datatype": "FP32", "data": [1, 2, 3]}]}


def options(file: Path, **more: Any) -> dict[str, Any]:
    texts = {f"trace-{name.replace('_', '-')}": str(value) for name, value in more.items()}
    return {"trace-file": str(file), "trace-level": "TIMESTAMPS", "trace-rate": "1", **texts}


def entries(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(file.read_bytes())
    return found


def names(found: list[dict[str, Any]], id: int) -> list[str]:
    return [
        stamp["name"] for each in found if each["id"] == id for stamp in each.get("timestamps", ())
    ]


async def infer(app, model="one", times=1):
    for _ in range(times):
        response = await app.client.post(f"/v2/models/{model}/infer", json=THREE | {"id": "7"})
        assert response.status_code == 200, response.text


def close(app):
    app.app.state.gateway.tracing.close()


async def test_http(kserve, tmp_path):
    """NVIDIA's summary takes a trace for one of HTTP by the names of these times."""
    file = tmp_path / "traces"
    async with other_app(kserve, triton_option=options(file)) as app:
        await infer(app)
        close(app)

    found = entries(file)
    assert found[0]["model_name"] == "one"
    assert found[0]["request_id"] == "7"
    of_request = names(found, found[0]["id"])
    assert of_request[:3] == ["HTTP_RECV_START", "HTTP_RECV_END", "REQUEST_START"]
    assert of_request[-3:] == ["REQUEST_END", "HTTP_SEND_START", "HTTP_SEND_END"]


async def test_each_request_of_a_grpc_stream(kserve, tmp_path):
    """It is a trace of its own, and counts for the rate."""
    file = tmp_path / "traces"
    sent = request("one", {"IN": ("FP32", [3], struct.pack("<3f", 1, 2, 3))})
    async with other_app(kserve, triton_option=options(file, rate=2)) as app:
        async with rpc_client(app.app) as rpc:
            stream = RpcClient(rpc.channel).stream([sent] * 80)
            assert len([each async for each in stream]) == 80
        close(app)

    found = entries(file)
    roots = [each["id"] for each in found if "model_name" in each]
    assert len(roots) == 40
    assert {"GRPC_WAITREAD_START", "GRPC_SEND_END"} < set(names(found, roots[0]))


async def test_settings_over_http(kserve, tmp_path):
    """Those of all models, and of one; null removes a setting."""
    start = options(tmp_path / "traces", count=9)
    async with other_app(kserve, triton_option=start) as app:
        first = (await app.client.get(PATH)).json()
        change = {"trace_count": "3", "log_frequency": "2", "trace_level": ["TENSORS"]}
        changed = (await app.client.post(PATH, json=change)).json()
        own = f"/v2/models/one{PATH.removeprefix('/v2')}"
        own_change = {"trace_rate": "5", "trace_level": ["TENSORS", "TIMESTAMPS"]}
        of_model = (await app.client.post(own, json=own_change)).json()
        removed = {"trace_rate": None, "trace_level": None}
        back = (await app.client.post(own, json=removed)).json()
        initial = {"trace_count": None, "log_frequency": None, "trace_level": None}
        last = (await app.client.post(PATH, json=initial)).json()
        close(app)

    assert first == {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": "1",
        "trace_count": "9",
        "log_frequency": "0",
        "trace_file": str(tmp_path / "traces"),
        "trace_mode": "triton",
    }
    expected = {**first, "trace_count": "3", "log_frequency": "2", "trace_level": ["TENSORS"]}
    assert changed == expected
    assert of_model == {**expected, "trace_rate": "5", "trace_level": ["TIMESTAMPS", "TENSORS"]}
    assert back == expected
    assert last == first


async def test_model_alone_is_traced(kserve, tmp_path):
    """Its settings apply to requests that name it."""
    file = tmp_path / "traces"
    async with other_app(kserve, triton_option=options(file, level="OFF")) as app:
        own = "/v2/models/one/trace/setting"
        body = {"trace_level": ["TIMESTAMPS"], "trace_count": "1"}
        assert (await app.client.post(own, json=body)).status_code == 200
        await infer(app, times=3)
        count = (await app.client.get(own)).json()["trace_count"]
        close(app)

    assert count == "0"
    assert len([each for each in entries(file.with_name("traces.0")) if "model_name" in each]) == 1


INVALID = [
    ({"trace_file": "/x"}, 501, "trace file location can not be updated"),
    ({"trace_file": None}, 501, "trace file location can not be updated"),
    ({"trace_level": ["TENSOR"]}, 400, "a list of TIMESTAMPS and TENSORS"),
    ({"trace_level": [["OFF"]]}, 400, "'trace_level' must be"),
    ({"trace_level": []}, 400, "'trace_level' must be"),
    ({"trace_level": ["OFF", "TIMESTAMPS"]}, 400, "'trace_level' must be"),
    ({"trace_rate": "0"}, 400, "sample rate must be non-zero"),
    ({"trace_rate": "-1"}, 400, "'trace_rate' must be a string of an integer from 0"),
    ({"trace_count": "-2"}, 400, "'trace_count' must be a string of an integer from -1"),
    ({"trace_count": "9" * 5000}, 400, "'trace_count' must be"),
    ({"trace_count": 5}, 400, "'trace_count' must be"),
    ({"log_frequency": "1.5"}, 400, "'log_frequency' must be"),
    ({"log_frequency": "--1"}, 400, "'log_frequency' must be"),
    ({"trace_speed": "1"}, 400, "unknown trace setting 'trace_speed'"),
]


@pytest.mark.parametrize(("body", "status", "reason"), INVALID, ids=str)
async def test_invalid_settings_change_nothing(kserve, tmp_path, body, status, reason):
    """All of a request's settings are changed, or none."""
    async with other_app(kserve, triton_option=options(tmp_path / "traces")) as app:
        before = (await app.client.get(PATH)).json()
        answer = await app.client.post(PATH, json={"trace_rate": "7", **body})
        after = (await app.client.get(PATH)).json()
        close(app)

    assert (answer.status_code, before) == (status, after)
    assert reason in answer.json()["error"]


async def test_settings_over_grpc(kserve, tmp_path):
    """A setting without a value is removed."""
    async with other_app(kserve, triton_option=options(tmp_path / "traces")) as app:
        async with rpc_client(app.app) as rpc:
            settings = {"trace_count": {"value": ["4"]}, "trace_rate": {"value": ["3"]}}
            changed = await rpc.ask("TraceSetting", settings=settings, model_name="one")
            gone: Any = {"trace_count": {"value": []}, "trace_rate": {"value": []}}
            back = await rpc.ask("TraceSetting", settings=gone, model_name="one")
            file = {"trace_file": {"value": ["/x"]}}
            refused = await rpc.refusal("TraceSetting", settings=file)
            unknown = await rpc.refusal("TraceSetting", settings=gone, model_name="nobody")
        close(app)

    def value(response: Any, name: str) -> list[str]:
        return list(response.settings[name].value)

    assert [value(changed, name) for name in ("trace_count", "trace_rate")] == [["4"], ["3"]]
    assert [value(back, name) for name in ("trace_count", "trace_rate")] == [["-1"], ["1"]]
    assert value(changed, "trace_mode") == ["triton"]
    assert refused[0] == "UNIMPLEMENTED"
    assert unknown[0] == "NOT_FOUND"


async def test_without_a_file_nothing_can_be_traced(kserve):
    """As in tritonserver, whose default is this mode."""
    async with other_app(kserve, triton_option={"trace-mode": "triton"}) as app:
        shown = (await app.client.get(PATH)).json()
        answer = await app.client.post(PATH, json={"trace_level": ["TIMESTAMPS"]})

    assert (shown["trace_file"], shown["trace_level"]) == ("", ["OFF"])
    assert answer.status_code == 400
    assert "trace file name is not given" in answer.json()["error"]


async def test_chats_are_traced_too(kserve, tmp_path):
    """The core does not know which API a request came from."""
    file = tmp_path / "traces"
    async with other_app(kserve, triton_option=options(file)) as app:
        body = {"model": "mock", "prompt": "hello", "max_tokens": 2}
        answer = await app.client.post("/v1/completions", json=body)
        close(app)

    assert answer.status_code == 200, answer.text
    assert entries(file)[0]["model_name"] == "mock"
