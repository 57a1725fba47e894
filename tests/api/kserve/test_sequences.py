"""Sequences of requests to a stateful model, over HTTP and gRPC."""

import struct
from typing import Any

import pytest
import pytest_asyncio

from tests.api.kserve.conftest import other_app
from tests.api.kserve.grpc_client import RpcClient, request, rpc_client
from tests.fast.auth import key_files
from tests.fast.auth.key_files import bearer, key

pytestmark = pytest.mark.asyncio(loop_scope="package")

MODELS: dict[str, tuple[int | str, int | str]] = {
    "sums": (7, 2**64 - 1),
    "sums_by_name": ("first", "é" * 64),
}


@pytest_asyncio.fixture(loop_scope="package")
async def rpc(kserve):
    async with rpc_client(kserve.app) as client:
        yield client


def step(id: int | str, place: str = "") -> dict[str, Any]:
    """A request's parameters; `place` is of `start` and `end`."""
    return {"sequence_id": id, "sequence_start": "start" in place, "sequence_end": "end" in place}


async def infer(kserve: Any, model: str, number: int, parameters: dict[str, Any]) -> int:
    """The model's sum, over HTTP."""
    sent = {"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [number]}
    response = await kserve.infer(model, sent, parameters=parameters)
    assert response.status_code == 200, response.text
    (total,) = response.json()["outputs"][0]["data"]
    return int(total)


def message(model: str, number: int, parameters: dict[str, Any], **fields: Any) -> Any:
    sent = request(model, {"IN": ("INT32", [1, 1], struct.pack("<i", number))}, **fields)
    for name, value in parameters.items():
        if isinstance(value, bool):
            sent.parameters[name].bool_param = value
        elif isinstance(value, int):
            sent.parameters[name].uint64_param = value
        else:
            sent.parameters[name].string_param = value
    return sent


async def rpc_infer(rpc: RpcClient, model: str, number: int, parameters: dict[str, Any]) -> int:
    """The model's sum, over gRPC."""
    return total(await rpc.ask("ModelInfer", message(model, number, parameters)))


def total(response: Any) -> int:
    (number,) = struct.unpack("<i", response.raw_output_contents[0])
    return int(number)


@pytest.mark.parametrize("model", MODELS)
async def test_interleaved_sequences(kserve, model):
    """Requests of two sequences have sums of their own, with ids of both types."""
    one, other = MODELS[model]

    sums = [
        await infer(kserve, model, 1, step(one, "start")),
        await infer(kserve, model, 10, step(other, "start")),
        await infer(kserve, model, 2, step(one)),
        await infer(kserve, model, 20, step(other, "end")),
        await infer(kserve, model, 3, step(one, "end")),
    ]

    assert sums == [1, 10, 3, 30, 6]


@pytest.mark.parametrize("model", MODELS)
async def test_one_sequence_over_both_protocols(kserve, rpc, model):
    """A sequence that began over HTTP continues over gRPC, and ends over HTTP."""
    id = MODELS[model][0]

    sums = [
        await infer(kserve, model, 1, step(id, "start")),
        await rpc_infer(rpc, model, 2, step(id)),
        await rpc_infer(rpc, model, 3, step(id)),
        await infer(kserve, model, 4, step(id, "end")),
    ]

    assert sums == [1, 3, 6, 10]


async def test_sequences_of_a_stream_keep_their_order(rpc):
    """Requests reach the model in the order of the stream, without waiting for answers."""
    places = ["start", *[""] * 18, "end"]
    sent = [
        message("sums", 1, step(id, place), id=f"{id}.{count}")
        for count, place in enumerate(places, 1)
        for id in (1, 2)
    ]

    found = [each async for each in rpc.stream(sent)]

    assert not any(each.error_message for each in found)
    sums = {each.infer_response.id: total(each.infer_response) for each in found}
    assert sums == {f"{id}.{count}": count for count in range(1, 21) for id in (1, 2)}


async def test_sequence_over_generate(kserve):
    """The parameters are members of the object, or of its parameters."""
    first = await kserve.generate("sums", IN=5, **step(3, "start"))
    last = await kserve.generate("sums", IN=6, parameters=step(3, "end"))

    assert (first.json()["OUT"], last.json()["OUT"]) == (5, 11)


async def test_new_start_begins_again(kserve):
    """A second start with the same id begins a new sequence."""
    sums = [await infer(kserve, "sums", 4, step(9, place)) for place in ("start", "", "start")]

    assert sums == [4, 8, 4]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no start": (step(77), "needs `sequence_start`"),
    "no id": (step(0, "start"), "correlation ID"),
    "an empty id": (step("", "start"), "correlation ID"),
    "no parameters": ({}, "correlation ID"),
    "a text for a number": (step("a", "start"), "model 'sums' needs an integer"),
    "a long id": (step("a" * 129, "start"), "'sequence_id': must have at most 128 bytes"),
    "a NUL": (step("a\0", "start"), "'sequence_id'"),
    "a large id": (step(2**64, "start"), "'sequence_id': must be from 0 to"),
    "a negative id": (step(-1, "start"), "'sequence_id': must be from 0 to"),
    "a boolean id": ({"sequence_id": True}, "'sequence_id': must be an integer or a string"),
    "a fraction": ({"sequence_id": 1.0}, "'sequence_id': must be an integer or a string"),
    "a number as flag": ({"sequence_id": 1, "sequence_start": 1}, "'sequence_start': must be a bo"),
    "a text as flag": ({"sequence_id": 1, "sequence_end": "no"}, "'sequence_end': must be a bool"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_refused_steps(kserve, case):
    """The error names the parameter, or is the core's own about its sequences."""
    parameters, words = REFUSED[case]
    sent = {"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [1]}

    response = await kserve.infer("sums", sent, parameters=parameters)

    assert (response.status_code, list(response.json())) == (400, ["error"])
    assert words in response.json()["error"]


@pytest.mark.parametrize("case", ["no start", "no id", "a text for a number", "a number as flag"])
async def test_refused_steps_over_grpc(rpc, case):
    """INVALID_ARGUMENT with the same words."""
    parameters, words = REFUSED[case]

    code, details = await rpc.refusal("ModelInfer", message("sums", 1, parameters))

    assert code == "INVALID_ARGUMENT"
    assert words in details


async def test_negative_id_over_grpc(rpc):
    """An id in the signed field must not be negative: it would be another sequence's."""
    sent = message("sums", 1, step(1, "start"))
    sent.parameters["sequence_id"].int64_param = -1

    code, details = await rpc.refusal("ModelInfer", sent)

    assert (code, "'sequence_id'" in details) == ("INVALID_ARGUMENT", True)


async def test_number_for_a_model_of_strings(kserve):
    """The error names the model that needs a string."""
    sent = {"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [1]}

    response = await kserve.infer("sums_by_name", sent, parameters=step(1, "start"))

    assert response.status_code == 400
    assert "model 'sums_by_name' needs a string" in response.json()["error"]


async def test_sequence_of_another_key(kserve, tmp_path):
    """A key cannot continue what another key has started, only start anew."""
    file = key_files.write(tmp_path / "keys.yaml", key("a"), key("b"))
    sent = {"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [1]}
    async with other_app(kserve, keys_file=file) as closed:

        async def ask(name: str, place: str) -> Any:
            body = {"inputs": [sent], "parameters": step(5, place)}
            path = "/v2/models/sums/infer"
            return await closed.client.post(path, json=body, headers=bearer(name))

        begun, other = await ask("a", "start"), await ask("b", "")
        again, lost = await ask("b", "start"), await ask("a", "end")

    statuses = [each.status_code for each in (begun, other, again, lost)]
    assert statuses == [200, 400, 200, 400]


async def test_stateless_models_ignore_sequences(kserve):
    """As in Triton, a sequence of a model without a sequence batcher is only its requests."""
    sent = {"name": "IN", "datatype": "FP32", "shape": [1], "data": [1.5]}

    response = await kserve.infer("one", sent, parameters=step(7))

    assert response.status_code == 200, response.text
