"""POST /invocations of SageMaker and the routes of Vertex AI: the endpoint that the body needs."""

import contextlib
import importlib
import json
import logging
import re
import struct
import tempfile
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from fastapi import FastAPI, Request, Response

from tests.api.kserve.conftest import other_app
from tests.fast.auth import key_files
from tests.fast.auth.key_files import bearer, key

pytestmark = pytest.mark.asyncio(loop_scope="package")

CHAT = {"model": "mock", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
COMPLETION = {"model": "mock", "prompt": "hi", "max_tokens": 2}
INFER = {"inputs": [{"name": "IN", "shape": [2], "datatype": "FP32", "data": [1, 2]}]}
GENERATE = {"text_input": "hi"}
TARGET = "X-Amzn-SageMaker-Target-Model"
SESSION = "X-Amzn-SageMaker-Session-Id"
OPEN, CLOSE = {"requestType": "NEW_SESSION"}, {"requestType": "CLOSE"}
STATEFUL = {"SAGEMAKER_ENABLE_STATEFUL_SESSIONS": "true"}
REDIRECT = "X-Vertex-Ai-Triton-Redirect"
BINARY = "application/vnd.sagemaker-triton.binary+json;json-header-size="
ROUTES = {"AIP_MODE": "PREDICTION", "AIP_HEALTH_ROUTE": "/aip/health",
          "AIP_PREDICT_ROUTE": "/aip/predict"}  # fmt: skip


@contextlib.asynccontextmanager
async def hosted(kserve, environment=ROUTES, **settings):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        async with other_app(kserve, **settings) as app:
            yield app.client


async def invoke(kserve, body, **headers):
    return await kserve.client.post("/invocations", json=body, headers=headers)


def without_ids(document):
    return {name: value for name, value in document.items() if name not in ("id", "created")}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),  # the model has no tokenizer: a failure of that endpoint
        ("/v1/completions", COMPLETION),
        ("/v1/embeddings", {"model": "mock", "input": "hi"}),
    ],
)
async def test_body_of_openais_api(kserve, path, body):
    """The answer is that of the body's own endpoint, also a failure."""
    direct, invoked = await kserve.client.post(path, json=body), await invoke(kserve, body)

    assert invoked.status_code == direct.status_code
    assert without_ids(invoked.json()) == without_ids(direct.json())


async def test_stream(kserve):
    stream = await invoke(kserve, {**COMPLETION, "stream": True})
    unknown = await invoke(kserve, {**COMPLETION, "model": "nobody"})

    assert stream.text.endswith("data: [DONE]\n\n")
    assert unknown.json()["error"]["code"] == "model_not_found"


async def test_body_of_kserves_protocol(kserve):
    """The header names the model; `stream` selects the stream of generate."""
    infer = await invoke(kserve, INFER, **{TARGET: "one"})
    generate = await invoke(kserve, GENERATE, **{TARGET: "mock"})
    stream = await invoke(kserve, {**GENERATE, "stream": True}, **{TARGET: "mock"})

    assert infer.json()["outputs"][0]["data"] == [1, 2]
    assert "text_output" in generate.json()
    assert stream.headers["content-type"].startswith("text/event-stream")


async def test_tensors_after_the_json(kserve):
    """SageMaker's content type has the length of the JSON, in the response too."""
    parameters = {"binary_data_size": 8}
    head = {"inputs": [{"name": "IN", "shape": [2], "datatype": "FP32", "parameters": parameters}],
            "outputs": [{"name": "IN_echo", "parameters": {"binary_data": True}}]}  # fmt: skip
    text, data = json.dumps(head).encode(), struct.pack("<2f", 1.5, -2)

    response = await kserve.client.post(
        "/invocations", content=text + data,
        headers={TARGET: "one", "content-type": f"{BINARY}{len(text)}"},
    )  # fmt: skip

    kind = response.headers["content-type"]
    assert kind.startswith(BINARY)
    assert response.content[int(kind.removeprefix(BINARY)) :] == data


async def test_model_of_the_environment(kserve):
    """Triton's variables name the model and the endpoint of requests in KServe's format."""
    environment = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "mock",
                   "SAGEMAKER_TRITON_INFERENCE_TYPE": "generate"}  # fmt: skip
    async with hosted(kserve, environment) as client:
        response = await client.post("/invocations", json=GENERATE)

    assert response.json()["model_name"] == "mock"


async def test_default_model_of_predictions(kserve):
    """`--vertex-ai-default-model` names it."""
    option = {"vertex-ai-default-model": "one"}
    async with hosted(kserve, triton_option=option) as client:
        response = await client.post("/aip/predict", json=INFER)

    assert response.json()["model_name"] == "one"


REFUSED = {
    "no member": ({"x": 1}, {}, 400, "messages, prompt"),
    "several models": (INFER, {}, 400, TARGET.lower()),
    "session": (CHAT, {SESSION: "1"}, 400, "SAGEMAKER_ENABLE_STATEFUL_SESSIONS"),
    "new session": (OPEN, {}, 400, "sessions are off"),
    "unknown type": ({"requestType": "OPEN"}, {}, 400, "requestType"),
    "unknown target": (INFER, {TARGET: "nobody"}, 404, "nobody"),
    "path as target": (INFER, {TARGET: "../one"}, 404, "invalid model name"),
    "adapter": (CHAT, {"X-Amzn-SageMaker-Adapter-Identifier": "a"}, 404, "'a'"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_refused_invocations(kserve, case):
    """The error says what is missing."""
    body, headers, status, message = REFUSED[case]

    response = await invoke(kserve, body, **headers)

    assert (response.status_code, message in response.text) == (status, True), response.text


async def test_predictions_of_vertex_ai(kserve):
    """Each instance is a body; parameters belong to all of them."""
    long = {"unknown": 10**30}  # orjson writes no such integer
    instances = [{"@requestFormat": "x", **COMPLETION}, {**COMPLETION, **long}]
    async with hosted(kserve) as client:
        several = await client.post(
            "/aip/predict", json={"instances": instances, "parameters": {"temperature": 0}}
        )
        single = await client.post("/aip/predict", json=COMPLETION)
        redirected = await client.post(
            "/aip/predict", json=INFER, headers={REDIRECT: "v2/models/one/infer"}
        )
        other = await client.post("/aip/predict", json={}, headers={REDIRECT: "metrics"})
        stream = await client.post(
            "/aip/predict", json={"instances": [{**COMPLETION, "stream": True}]}
        )
        health = await client.get("/aip/health")
        ready = await client.get("/health/ready")

    kinds = [each["object"] for each in several.json()["predictions"]]
    assert kinds == ["text_completion", "text_completion"]
    assert single.json()["object"] == "text_completion"
    assert redirected.json()["model_name"] == "one"
    assert (other.status_code, stream.status_code) == (403, 400)
    assert (health.status_code, health.json()) == (ready.status_code, ready.json())


async def test_tensors_of_predictions(kserve):
    """Outputs of infer are JSON, whatever the client accepts; binary ones are refused."""
    zeros = {"name": "IN", "shape": [4000], "datatype": "FP32", "data": [0] * 4000}
    output = {"name": "IN_echo", "parameters": {"binary_data": True}}
    headers = {TARGET: "one", "accept-encoding": "gzip"}
    async with hosted(kserve) as client:
        long, binary = [
            await client.post("/aip/predict", json={"instances": [each]}, headers=headers)
            for each in ({"inputs": [zeros]}, {**INFER, "outputs": [output]})
        ]

    assert long.json()["predictions"][0]["outputs"][0]["data"] == [0] * 4000
    assert (binary.status_code, "Binary outputs" in binary.text) == (400, True)


async def test_routes_of_vertex_ai_need_its_mode(kserve):
    """Without it, the variables mean nothing; with it, they must be paths."""
    async with hosted(kserve, {**ROUTES, "AIP_MODE": "TRAINING"}) as client:
        assert (await client.post("/aip/predict", json=CHAT)).status_code == 404
    with pytest.raises(ValueError, match="AIP_PREDICT_ROUTE must be a path"):
        async with hosted(kserve, {**ROUTES, "AIP_PREDICT_ROUTE": "predict"}):
            pass


async def test_scope(kserve, tmp_path):
    """A key needs the scope `inference`, and may use only its models."""
    keys = [key("free"), key("one", models=["one"]), key("looks", scopes=frozenset({"models"}))]
    file = key_files.write(tmp_path / "keys.yaml", *keys)
    found = {}
    async with hosted(kserve, keys_file=file) as client:
        for name in ("free", "one", "looks", "nobody"):
            headers = {**bearer(name), TARGET: "mock"}
            for path in ("/invocations", "/aip/predict"):
                response = await client.post(path, json=GENERATE, headers=headers)
                found[name, path] = response.status_code

    assert [*found.values()] == [200, 200, 404, 404, 403, 403, 401, 401]


async def opened(client, **headers):
    response = await client.post("/invocations", json=OPEN, headers=headers)
    return response.headers["x-amzn-sagemaker-new-session-id"].partition(";")[0]


async def test_session(kserve):
    """It is opened, serves requests and is closed; then its id is unknown."""
    async with hosted(kserve, {**STATEFUL, "SAGEMAKER_SESSIONS_EXPIRATION": "60"}) as client:
        new = await client.post("/invocations", json=OPEN, headers={SESSION: "ignored"})
        id, _, expires = new.headers["x-amzn-sagemaker-new-session-id"].partition("; Expires=")
        used = await client.post("/invocations", json=COMPLETION, headers={SESSION: id})
        closed = await client.post("/invocations", json=CLOSE, headers={SESSION: id})
        late = await client.post("/invocations", json=COMPLETION, headers={SESSION: id})
        again = await client.post("/invocations", json=CLOSE, headers={SESSION: id})

    left = datetime.strptime(expires, "%Y-%m-%dT%H:%M:%S%z") - datetime.now(UTC)
    assert timedelta(seconds=30) < left <= timedelta(seconds=60)
    assert [each.status_code for each in (new, used, closed, late, again)] == [
        200,
        200,
        200,
        400,
        400,
    ]
    assert closed.headers["x-amzn-sagemaker-closed-session-id"] == id
    assert (new.text, closed.text) == (f"Session {id} created", f"Session {id} closed")
    assert f"session not found: '{id}'" in late.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({**OPEN, "model": "mock"}, "'requestType' must be the only member, not with 'model'"),
        (CLOSE, "must name the session to close"),
        ({"requestType": "OPEN"}, "requestType"),
    ],
)
async def test_refused_session_requests(kserve, body, message):
    async with hosted(kserve, STATEFUL) as client:
        response = await client.post("/invocations", json=body)

    assert (response.status_code, message in response.text) == (400, True), response.text


async def test_session_belongs_to_its_key(kserve, tmp_path):
    """Another key cannot use or close it."""
    file = key_files.write(tmp_path / "keys.yaml", key("mine"), key("other"))
    async with hosted(kserve, STATEFUL, keys_file=file) as client:
        id = await opened(client, **bearer("mine"))
        found = [
            (await client.post("/invocations", json=body, headers={**bearer(name), SESSION: id}))
            for name in ("other", "mine")
            for body in (COMPLETION, CLOSE)
        ]

    assert [each.status_code for each in found] == [400, 400, 200, 200]


@pytest.mark.parametrize("seconds", ["0", "x", "-1", "604801", "9" * 400])
async def test_lifetime_of_sessions_is_checked(kserve, seconds):
    with pytest.raises(ValueError, match="SAGEMAKER_SESSIONS_EXPIRATION must be a number"):
        async with hosted(kserve, {**STATEFUL, "SAGEMAKER_SESSIONS_EXPIRATION": seconds}):
            pass


async def test_answers_are_those_of_the_standard_package(kserve):
    """Status and headers, for a container in which vLLM's own server ran before."""
    async with hosted(kserve, STATEFUL) as ours, standard_app() as standard:
        found = [await session_answers(client) for client in (standard, ours)]

    assert found[0] == found[1]


async def session_answers(client):
    """Status and headers of each step of a session, without what is random."""
    id = await opened(client)
    steps = [(OPEN, {}), (COMPLETION, {SESSION: id}), (COMPLETION, {SESSION: "nobody"}),
             ({**OPEN, "x": 1}, {}), ({"requestType": "OPEN"}, {}), (CLOSE, {SESSION: "nobody"}),
             (CLOSE, {SESSION: id}), (CLOSE, {SESSION: id})]  # fmt: skip
    answers = []
    for body, headers in steps:
        response = await client.post("/invocations", json=body, headers=headers)
        ids = {
            name: re.sub(r"[0-9a-f]{8}-[-0-9a-f]{27}|\d{4}-\S+Z", "...", value)
            for name, value in response.headers.items()
            if name.endswith("session-id")
        }
        answers.append((response.status_code, ids))
    return answers


@contextlib.asynccontextmanager
async def standard_app():
    """An application with the handlers of `model-hosting-container-standards`, as in vLLM."""
    level = logging.root.level
    with pytest.MonkeyPatch.context() as patch:
        # Its import changes their levels, and so what other tests see; and the root's
        patch.setattr(logging.root, "handlers", [])
        standards = pytest.importorskip("model_hosting_container_standards.sagemaker")
    logging.root.setLevel(level)
    manager = importlib.import_module(f"{standards.__name__}.sessions.manager")
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAGEMAKER_ENABLE_STATEFUL_SESSIONS", "true")
        patch.setenv("SAGEMAKER_SESSIONS_PATH", folder)
        manager.init_session_manager_from_env()
        app = FastAPI()

        @app.post("/invocations")
        @standards.stateful_session_manager()
        async def invocations(request: Request):
            return Response("{}")

        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://standard") as client:
            yield client
