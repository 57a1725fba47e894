"""Server and model metadata, and the parts of the protocol that are not supported."""

import asyncio

import pytest

from openai_frontend.triton import _core
from tests.api.kserve.conftest import other_app

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_server_metadata(kserve):
    """The core's version, and only supported extensions."""
    metadata = (await kserve.client.get("/v2")).json()

    assert metadata["version"] == kserve.server.metadata()["version"]
    assert {"binary_tensor_data", "statistics", "sequence", "generate"} <= set(
        metadata["extensions"]
    )
    assert not {"system_shared_memory"} & set(metadata["extensions"])


@pytest.mark.parametrize(("path", "state"), [("live", {"live": True}), ("ready", {"ready": True})])
async def test_health_is_in_status_and_body(kserve, path, state):
    """tritonclient reads the status, KServe's client the body."""
    response = await kserve.client.get(f"/v2/health/{path}")

    assert (response.status_code, response.json()) == (200, state)


@pytest.mark.parametrize("path", ["models/one/ready", "models/one/versions/1/ready"])
async def test_ready_is_200_without_a_body(kserve, path):
    response = await kserve.client.get(f"/v2/{path}")

    assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize("path", ["models/nobody/ready", "models/one/versions/7/ready"])
async def test_not_ready_is_400(kserve, path):
    """As Triton answers it."""
    assert (await kserve.client.get(f"/v2/{path}")).status_code == 400


async def test_metadata_is_the_cores_own(kserve):
    """Metadata, config and statistics are the core's own documents."""
    client, server = kserve.client, kserve.server

    for version in ("", "/versions/1"):
        path = f"/v2/models/one{version}"
        assert (await client.get(path)).json() == server.model_metadata("one")
        assert (await client.get(f"{path}/config")).json() == server.model_config("one")
        told = (await client.get(f"{path}/stats")).json()
        assert told == server.model_statistics("one")
    assert (await client.get("/v2/models/stats")).json() == server.model_statistics()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "systemsharedmemory/status"),
        ("POST", "systemsharedmemory/region/x/register"),
        ("GET", "cudasharedmemory/region/x/status"),
        ("POST", "repository/mine/models/one/load"),
    ],
)
async def test_unsupported_endpoints_say_so(kserve, method, path):
    """Endpoints that only Triton's own frontend has return an error that says so."""
    response = await kserve.client.request(method, f"/v2/{path}")

    assert (response.status_code, list(response.json())) == (501, ["error"])


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "nowhere", 404), ("GET", "models/one/infer", 405), ("DELETE", "models/one", 405)],
)
async def test_unknown_paths_and_methods(kserve, method, path, status):
    """Unknown paths and wrong methods are rejected in KServe's error format."""
    response = await kserve.client.request(method, f"/v2/{path}")

    assert (response.status_code, list(response.json())) == (status, ["error"])
    assert response.headers["x-request-id"]


async def test_kserve_can_be_disabled(kserve):
    """With `enable_kserve` off, only Cohere's /v2/rerank remains."""
    async with other_app(kserve, enable_kserve=False) as off:
        ready = await off.client.get("/v2/health/ready")
        rerank = await off.client.post("/v2/rerank", json={})

    assert (ready.status_code, rerank.status_code) == (404, 400)


async def test_limit_errors_use_kserves_format(kserve):
    """A body that is too large and a full queue are reported in KServe's error format."""
    async with other_app(kserve, max_body_bytes=100) as small:
        large = await small.client.post("/v2/models/one/infer", content=b" " * 101)
    async with other_app(kserve, max_concurrent_requests=1, max_queue_size=0) as narrow:
        body = {"text_input": "hi", "stream": True}
        path = "/v2/models/slow/generate_stream"
        first = asyncio.create_task(narrow.client.post(path, json={**body, "max_tokens": 40}))
        while not _core.live_counts()["requests"]:  # noqa: ASYNC110  a count has no event
            await asyncio.sleep(0.01)
        second = await narrow.client.post(path, json=body)
        first.cancel()

    assert (large.status_code, list(large.json())) == (413, ["error"])
    assert (second.status_code, list(second.json())) == (503, ["error"])
    assert second.headers["retry-after"]
