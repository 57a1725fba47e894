"""POST /invocations of SageMaker and the routes of Vertex AI: the endpoint that the body needs."""

import contextlib
import json
import struct

import pytest

from tests.api.kserve.conftest import other_app
from tests.fast.auth import key_files
from tests.fast.auth.key_files import bearer, key

pytestmark = pytest.mark.asyncio(loop_scope="package")

CHAT = {"model": "mock", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
COMPLETION = {"model": "mock", "prompt": "hi", "max_tokens": 2}
INFER = {"inputs": [{"name": "IN", "shape": [2], "datatype": "FP32", "data": [1, 2]}]}
GENERATE = {"text_input": "hi"}
TARGET = "X-Amzn-SageMaker-Target-Model"
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
    "session": (CHAT, {"X-Amzn-SageMaker-Session-Id": "1"}, 400, "sessions are not supported"),
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
    instances = [{"@requestFormat": "x", **COMPLETION}, COMPLETION]
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
