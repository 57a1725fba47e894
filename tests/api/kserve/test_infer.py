"""POST /v2/models/{model}/infer: every datatype, JSON and binary data, and rejected requests."""

import asyncio
import json
from typing import Any
from unittest.mock import Mock

import pytest

from openai_frontend.errors import ModelUnavailable
from openai_frontend.routers.examples import EXAMPLES
from tests.api.kserve.conftest import ALL
from tests.core.triton.generation_inputs import collect
from tests.core.triton.test_inference import VALUES

pytestmark = pytest.mark.asyncio(loop_scope="package")

IN = {"name": "IN", "shape": [3], "datatype": "FP32", "data": [1.5, -2, 0.25]}
OCTETS = {"content-type": "application/octet-stream"}


def binary(inputs: list[dict[str, Any]], *tail: bytes, **fields: Any) -> dict[str, Any]:
    """A request whose tensors follow its JSON."""
    head = json.dumps({"inputs": inputs, **fields}).encode()
    headers = {**OCTETS, "inference-header-content-length": str(len(head))}
    return {"content": head + b"".join(tail), "headers": headers}


def described(name: str, datatype: str, data: bytes, shape: list[int]) -> dict[str, Any]:
    size = {"binary_data_size": len(data)}
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": size}


def split(response: Any) -> tuple[dict[str, Any], bytes]:
    """A response's JSON and the bytes that follow it."""
    length = int(response.headers["inference-header-content-length"])
    return json.loads(response.content[:length]), response.content[length:]


async def test_json(kserve):
    """A JSON tensor comes back as JSON, with the request's id and the model's version."""
    response = await kserve.infer("one", IN, id="mine", outputs=[{"name": "IN_echo"}])

    assert response.status_code == 200, response.text
    assert response.json() == {
        "id": "mine",
        "model_name": "one",
        "model_version": "1",
        "outputs": [{"name": "IN_echo", "datatype": "FP32", "shape": [3], "data": [1.5, -2, 0.25]}],
    }


@pytest.mark.parametrize("datatype", ALL)
async def test_binary_data_equals_the_cores(kserve, datatype):
    """Binary data comes back with the same bytes as from the core's own interface."""
    data = VALUES[datatype][0]
    requested = {"name": f"{datatype}_echo", "parameters": {"binary_data": True}}
    sent = binary([described(datatype, datatype, data, [3])], data, outputs=[requested])

    response = await kserve.client.post("/v2/models/all/infer", **sent)

    answer, tail = split(response)
    (direct,) = await collect(kserve.server.infer("all", {datatype: (datatype, (3,), data)}))
    assert tail == bytes(memoryview(direct.tensor(f"{datatype}_echo")))  # type: ignore[arg-type]
    assert answer["outputs"] == [described(f"{datatype}_echo", datatype, data, [3])]
    assert response.headers["content-type"] == "application/octet-stream"


async def test_json_and_binary_in_one_request(kserve):
    """Each output has the form that was requested for it."""
    first, second = VALUES["INT16"][0], VALUES["BYTES"][0]
    inputs = [
        described("INT16", "INT16", first, [3, 1][:1]),
        {"name": "BOOL", "datatype": "BOOL", "shape": [2], "data": [True, False]},
        described("BYTES", "BYTES", second, [3]),
    ]
    outputs = [{"name": "BOOL_echo", "parameters": {"binary_data": False}}, {"name": "BYTES_echo"}]
    sent = binary(inputs, first, second, outputs=outputs, parameters={"binary_data_output": True})

    answer, tail = split(await kserve.client.post("/v2/models/all/infer", **sent))

    outputs_by_name = {each["name"]: each for each in answer["outputs"]}
    assert outputs_by_name.keys() == {"BOOL_echo", "BYTES_echo"}
    assert outputs_by_name["BOOL_echo"]["data"] == [True, False]
    assert tail == second


async def test_large_tensor(kserve):
    """A tensor of 1 MB, converted in a thread, comes back complete."""
    values = list(range(100_000))
    sent = {"name": "INT64", "datatype": "INT64", "shape": [100_000], "data": values}

    response = await kserve.infer("all", sent, outputs=[{"name": "INT64_echo"}])

    assert response.json()["outputs"][0]["data"] == values


async def test_raw_body(kserve):
    """With a header of 0 the body is the only input, and all outputs are binary."""
    headers = {**OCTETS, "inference-header-content-length": "0"}

    response = await kserve.client.post("/v2/models/text/infer", content=b"abc", headers=headers)

    answer, tail = split(response)
    assert answer["outputs"][0]["name"] == "IN_echo"
    assert tail.startswith(b"\x03\x00\x00\x00abc")


async def test_custom_parameters_reach_the_model(kserve):
    """So does the id. Scheduling parameters are not among them."""
    parameters = {"mine": "a", "n": -(2**63), "x": 0.5, "on": True, "priority": 1, "timeout": 10**9,
                  "sequence_id": 0, "sequence_start": False}  # fmt: skip

    response = await kserve.infer("one", IN, id="42", parameters=parameters)

    said = {each["name"]: each["data"] for each in response.json()["outputs"]}
    assert said["request_id"] == ["42"]
    custom = {"mine": "a", "n": -(2**63), "x": 0.5, "on": True}
    assert json.loads(said["parameters"][0]).items() >= custom.items()


async def test_classification(kserve):
    """The top class of each batch entry, as `value:index`."""
    sent = {"name": "IN", "datatype": "INT32", "shape": [2, 2], "data": [[1, 2], [4, 3]]}
    requested = {"name": "IN_echo", "parameters": {"classification": 1}}

    response = await kserve.infer("batched", sent, outputs=[requested])

    classes = {"name": "IN_echo", "datatype": "BYTES", "shape": [2, 1], "data": ["2:1", "4:0"]}
    assert response.json()["outputs"] == [classes]


async def test_classification_with_labels(kserve):
    """Classes with a label are `value:index:label`; those beyond the label file have none."""
    sent = {"name": "IN", "datatype": "FP32", "shape": [4], "data": [0.5, 2.5, -1, 1]}
    requested = {"name": "OUT", "parameters": {"classification": 3}}

    response = await kserve.infer("labelled", sent, outputs=[requested])

    (output,) = response.json()["outputs"]
    assert output["data"] == ["2.500000:1:dog", "1.000000:3", "0.500000:0:cat"]


async def test_labels_of_a_batch(kserve):
    """Each entry of the batch counts its classes from 0."""
    sent = {"name": "IN", "datatype": "INT32", "shape": [2, 4], "data": [1, 9, 0, 0, 5, 0, 0, 4]}
    requested = {"name": "OUT", "parameters": {"classification": 2, "binary_data": False}}

    response = await kserve.infer("labelled_batches", sent, outputs=[requested])

    (output,) = response.json()["outputs"]
    assert (output["shape"], output["datatype"]) == ([2, 2], "BYTES")
    assert output["data"] == ["9:1:dog", "1:0:cat", "5:0:cat", "4:3"]


async def test_ragged_batch(kserve):
    """Requests of different shapes are one batch if the model allows it: neither waits for more."""
    sent = [
        {"name": "IN", "datatype": "INT32", "shape": [1, length], "data": list(range(length))}
        for length in (2, 3)
    ]

    async with asyncio.timeout(10):  # the batcher would wait 60 s for another of that shape
        answers = await asyncio.gather(*(kserve.infer("ragged", each) for each in sent))

    echoes = [each.json()["outputs"][0] for each in answers]
    assert [each["data"] for each in echoes] == [[0, 1], [0, 1, 2]]


async def test_version_in_the_path(kserve):
    """An existing version answers under its number."""
    response = await kserve.client.post("/v2/models/one/versions/1/infer", json={"inputs": [IN]})

    assert response.json()["model_version"] == "1"


async def test_model_of_optional_inputs_needs_none(kserve):
    response = await kserve.infer("all")

    names = {each["name"] for each in response.json()["outputs"]}
    assert (response.status_code, names) == (200, {"parameters", "request_id"})


async def test_answer_outlasts_its_model(kserve, monkeypatch):
    """The version is that of the request's begin: the model may be unloaded while it computes."""
    infer, metadata = kserve.server.infer, kserve.server.model_metadata

    def begun(*args, **options):
        unloaded = Mock(side_effect=ModelUnavailable("no available versions"))
        monkeypatch.setattr(kserve.server, "model_metadata", unloaded)
        return infer(*args, **options)

    monkeypatch.setattr(kserve.server, "infer", begun)
    response = await kserve.infer("one", IN)

    assert metadata("one")["versions"] == ["1"]
    assert (response.status_code, response.json()["model_version"]) == (200, "1")


async def test_documented_example(kserve):
    """The documented example is valid: a model with other tensors objects only to a name."""
    example = EXAMPLES["/v2/models/{model}/infer"]["json"].body("")

    response = await kserve.client.post("/v2/models/one/infer", json=example)

    assert "'OUTPUT0'" in response.json()["error"]


def changed(**fields: Any) -> dict[str, Any]:
    return {**IN, **fields}


REFUSED: dict[str, tuple[int, str, dict[str, Any]]] = {
    "no inputs": (400, "inputs", {"inputs": []}),
    "not a list": (400, "inputs", {"inputs": "x"}),
    "an unknown datatype": (400, "'IN'", {"inputs": [changed(datatype="FP8")]}),
    "another datatype": (400, "IN", {"inputs": [changed(datatype="INT32", data=[1, 2, 3])]}),
    "too few elements": (400, "'IN'", {"inputs": [changed(data=[1.0])]}),
    "a negative shape": (400, "shape", {"inputs": [changed(shape=[-1])]}),
    "a boolean shape": (400, "shape", {"inputs": [changed(shape=[True])]}),
    "a shape that overflows": (400, "'IN'", {"inputs": [changed(shape=[2**62, 2**62])]}),
    "another rank": (400, "IN", {"inputs": [changed(shape=[3, 1])]}),
    "an unknown input": (400, "NO", {"inputs": [changed(name="NO")]}),
    "a traversal": (400, "../IN", {"inputs": [changed(name="../IN")]}),
    "a NUL": (400, "inputs[0].name", {"inputs": [changed(name="IN\0x")]}),
    "a duplicate input": (400, "duplicate input", {"inputs": [IN, IN]}),
    "no data": (400, "'IN'", {"inputs": [{k: v for k, v in IN.items() if k != "data"}]}),
    "data twice": (400, "'IN'", {"inputs": [changed(parameters={"binary_data_size": 4})]}),
    "shared memory": (
        400,
        "shared_memory_region",
        {"inputs": [changed(parameters={"shared_memory_region": "r"})]},
    ),
    "an unknown output": (400, "NO", {"inputs": [IN], "outputs": [{"name": "NO"}]}),
    "a duplicate output": (
        400,
        "duplicate output",
        {"inputs": [IN], "outputs": [{"name": "IN_echo"}, {"name": "IN_echo"}]},
    ),
    "an output in shared memory": (
        400,
        "shared_memory_region",
        {"inputs": [IN],
         "outputs": [{"name": "IN_echo", "parameters": {"shared_memory_region": "r"}}]},
    ),
    "a reserved parameter": (400, "triton_x", {"inputs": [IN], "parameters": {"triton_x": 1}}),
    "a list as parameter": (400, "'x'", {"inputs": [IN], "parameters": {"x": [1]}}),
    "a huge parameter": (400, "'x'", {"inputs": [IN], "parameters": {"x": 2**63}}),
    "an invalid priority": (400, "priority", {"inputs": [IN], "parameters": {"priority": "high"}}),
    "an invalid id": (400, "id", {"inputs": [IN], "id": 7}),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
async def test_invalid_requests_are_rejected(kserve, case):
    """The error names the cause and has a single member, a text."""
    status, named, body = REFUSED[case]

    response = await kserve.client.post("/v2/models/one/infer", json=body)

    assert (response.status_code, list(response.json())) == (status, ["error"])
    assert named in response.json()["error"]


BODIES = {
    "not JSON": b"{",
    "NaN": b'{"inputs":[{"name":"IN","shape":[1],"datatype":"FP32","data":[NaN]}]}',
    "infinite": b'{"inputs":[{"name":"IN","shape":[1],"datatype":"FP32","data":[1e999]}]}',
    "a surrogate": b'{"inputs":[{"name":"\\ud800","shape":[1],"datatype":"FP32","data":[1]}]}',
    "deep": b'{"inputs":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "empty": b"",
    "a list": b"[]",
}


@pytest.mark.parametrize("body", BODIES)
async def test_invalid_json_is_rejected(kserve, body):
    """A body that is not a JSON object is a 400."""
    response = await kserve.client.post("/v2/models/one/infer", content=BODIES[body])

    assert response.status_code == 400, response.text


@pytest.mark.parametrize(
    ("model", "datatype", "size", "tail"),
    [
        ("one", "FP32", 12, b"123"),
        ("one", "FP32", 12, b"1" * 13),
        ("one", "FP32", 11, b"1" * 11),
        ("text", "BYTES", 7, b"\x05\x00\x00\x00abc"),
        ("text", "BYTES", 3, b"abc"),
    ],
)
async def test_binary_data_that_does_not_fit(kserve, model, datatype, size, tail):
    """Missing bytes, extra bytes and malformed elements never reach the model."""
    shape = [1] if datatype == "BYTES" else [3]
    tensor = {"name": "IN", "datatype": datatype, "shape": shape}
    sent = binary([{**tensor, "parameters": {"binary_data_size": size}}], tail)

    response = await kserve.client.post(f"/v2/models/{model}/infer", **sent)

    assert response.status_code == 400, response.text


@pytest.mark.parametrize("length", ["-1", "x", "999999"])
async def test_invalid_header_lengths(kserve, length):
    """A header that cannot be the JSON's length is rejected with its name."""
    headers = {**OCTETS, "inference-header-content-length": length}

    response = await kserve.client.post("/v2/models/one/infer", content=b"{}", headers=headers)

    assert (response.status_code, "inference-header" in response.text) == (400, True)


async def test_half_precision_in_json(kserve):
    """JSON cannot hold FP16; the error suggests binary data."""
    data = VALUES["FP16"][0]
    sent = binary([described("FP16", "FP16", data, [3])], data)

    response = await kserve.client.post("/v2/models/all/infer", **sent)

    assert (response.status_code, "binary" in response.text) == (400, True)


async def test_decoupled_models_are_rejected(kserve):
    """The error points to generate for models that may send any number of responses."""
    sent = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["hi"]}

    response = await kserve.infer("mock", sent)

    assert (response.status_code, "generate_stream" in response.text) == (400, True)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("nobody", 404), ("%2e%2e", 404), ("..%2fone", 404), ("x%00y", 404), ("one%5c..", 404),
        ("one/versions/9", 404), ("one/versions/0", 400), ("one/versions/-1", 400),
        ("one/versions/x", 400), ("one/versions/99999999999999999999", 400),
    ],
)  # fmt: skip
async def test_unknown_models_and_versions(kserve, path, status):
    """An unknown name of any form is a 404. A version must be a number."""
    response = await kserve.client.post(f"/v2/models/{path}/infer", json={"inputs": [IN]})

    assert (response.status_code, list(response.json())) == (status, ["error"])
