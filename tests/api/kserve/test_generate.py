"""POST /v2/models/{model}/generate and /generate_stream."""

import asyncio
import json
from typing import Any

import pytest

from openai_frontend.triton import _core

pytestmark = pytest.mark.asyncio(loop_scope="package")

PROMPT = {"text_input": "hi there"}
CURL = {"content-type": "application/x-www-form-urlencoded"}


def events(text: str) -> list[dict[str, Any]]:
    """The documents of an event stream."""
    assert text.endswith("\n\n")
    return [json.loads(event.removeprefix("data: ")) for event in text.split("\n\n")[:-1]]


async def idle() -> None:
    """Returns once the core has no running request."""
    async with asyncio.timeout(30):
        while _core.live_counts()["requests"]:  # noqa: ASYNC110  a count has no event
            await asyncio.sleep(0.01)


async def test_curl_command_of_nvidias_readme(kserve):
    """`curl -d`, as in NVIDIA's vllm_backend README, returns the text as JSON."""
    body = b'{"text_input": "hi there", "parameters": {"stream": false, "temperature": 0}}'

    response = await kserve.client.post("/v2/models/mock/generate", content=body, headers=CURL)

    assert response.status_code == 200, response.text
    told = {"model_name": "mock", "model_version": "1", "text_output": "Hello"}
    assert response.json().items() >= told.items()


async def test_a_form_from_a_browser_is_rejected(kserve):
    """The same form is rejected from a browser: a page could send it without the user's consent."""
    headers = {**CURL, "origin": "https://elsewhere.example"}

    response = await kserve.client.post("/v2/models/mock/generate", content=b"{}", headers=headers)

    assert (response.status_code, list(response.json())) == (415, ["error"])


async def test_request_parameters_are_sampling_parameters(kserve):
    """Without the tensor `sampling_parameters`, the request's parameters set the sampling."""
    sampling = {"max_tokens": 5, "ignore_eos": True}

    response = await kserve.generate("mock", **PROMPT, parameters=sampling)
    tensor = await kserve.generate("mock", **PROMPT, sampling_parameters=json.dumps(sampling))

    assert response.json()["text_output"] == tensor.json()["text_output"] == "HelloHelloHel"


async def test_an_unknown_sampling_parameter(kserve):
    """A parameter that the model does not know is a 400 that names it."""
    response = await kserve.generate("mock", **PROMPT, parameters={"warmth": 1})

    assert (response.status_code, "warmth" in response.json()["error"]) == (400, True)


async def test_prompt_is_included_on_request(kserve):
    """`exclude_input_in_output: false` puts the prompt before the answer, but not in a stream."""
    response = await kserve.generate("mock", **PROMPT, exclude_input_in_output=False)
    streamed = await kserve.generate("mock", **PROMPT, exclude_input_in_output=False, stream=True)

    assert response.json()["text_output"] == "hi thereHello"
    assert (streamed.status_code, "exclude_input" in streamed.text) == (400, True)


async def test_request_id_is_returned(kserve):
    response = await kserve.generate("mock", **PROMPT, id="42")

    assert response.json()["id"] == "42"


async def test_json_values_become_declared_tensors(kserve):
    """Numbers and lists become tensors if the model declares them."""
    response = await kserve.generate("all", INT32=[1, 2], BOOL=True, BYTES="é", mine=7)

    answer = response.json()
    assert (answer["INT32_echo"], answer["BOOL_echo"], answer["BYTES_echo"]) == ([1, 2], True, "é")
    assert json.loads(answer["parameters"])["mine"] == 7


async def test_generate_rejects_more_than_one_response(kserve):
    """The error of generate points to generate_stream if the model sends several responses."""
    response = await kserve.generate("mock", **PROMPT, stream=True)

    assert (response.status_code, "generate_stream" in response.text) == (400, True)
    await idle()


async def test_stream_sends_one_event_per_response(kserve):
    """Each response of the model is an event. The stream has no closing event."""
    body = {**PROMPT, "stream": True, "id": "7"}

    response = await kserve.client.post("/v2/models/mock/generate_stream", json=body)

    told = events(response.text)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert [each["text_output"] for each in told] == ["Hel", "lo"]
    assert {(each["id"], each["model_name"], each["model_version"]) for each in told} == {
        ("7", "mock", "1")
    }
    assert "finish_reason" in told[-1]


PARTS = [b"a\xc3", b"\xa9\xf0\x9f", b"\x98", b"\x80"]  # aé😀


async def test_characters_that_a_model_splits(kserve):
    """They arrive whole, each output for itself."""
    body = {"IN": [each.hex() for each in PARTS]}

    response = await kserve.client.post("/v2/models/parts/generate_stream", json=body)

    told = events(response.text)
    assert [each["OUT"] for each in told] == ["a", "é", "", "😀"]
    assert [each["AGAIN"] for each in told] == ["a", "é", "", "😀"]


async def test_answer_that_ends_within_a_character(kserve):
    """The stream ends with an error, and a complete answer is one."""
    body = {"IN": [PARTS[0].hex()]}

    streamed = await kserve.client.post("/v2/models/parts/generate_stream", json=body)
    whole = await kserve.generate("parts", **body)

    first, last = events(streamed.text)
    assert (first["OUT"], list(last), whole.status_code) == ("a", ["error"], 400)
    assert "'OUT'" in last["error"]
    assert "not UTF-8" in whole.json()["error"]


async def test_failure_is_the_last_event_of_a_stream(kserve):
    """Events before a failure are sent. The failure is the last event, without internal details."""
    body = {**PROMPT, "stream": True}

    response = await kserve.client.post("/v2/models/failing/generate_stream", json=body)

    *before, last = events(response.text)
    assert (response.status_code, len(before), list(last)) == (200, 2, ["error"])
    assert "mock" not in last["error"]


async def test_failure_before_the_first_event_keeps_its_status(kserve):
    body = {"text_input": 7}

    response = await kserve.client.post("/v2/models/mock/generate_stream", json=body)

    assert (response.status_code, "'text_input'" in response.json()["error"]) == (400, True)


async def test_disconnect_cancels_the_request(kserve):
    """The core cancels the request and its slot is free again."""
    body = {**PROMPT, "stream": True}
    async with kserve.client.stream("POST", "/v2/models/slow/generate_stream", json=body) as stream:
        async for _ in stream.aiter_bytes():
            break
        assert _core.live_counts()["requests"] == 1

    await idle()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "text_input"),
        ({"text_input": ["a", "b"]}, "text_input"),
        ({**PROMPT, "stream": "yes"}, "stream"),
        ({**PROMPT, "parameters": 7}, "parameters"),
        ({**PROMPT, "parameters": {"stop": ["x"]}}, "stop"),
        ({**PROMPT, "stream": False, "parameters": {"stream": False}}, "stream"),
        ({**PROMPT, "triton_final": 1}, "triton_final"),
        ({**PROMPT, "sequence_id": -7}, "sequence_id"),
        ({**PROMPT, "cache_salt": "\0" * 512}, ""),
        ({**PROMPT, "a\0b": 1}, ""),
        ({**PROMPT, "note": "a\0b"}, "note"),
    ],
)
async def test_invalid_fields_are_rejected(kserve, fields, named):
    """What the model or the core cannot accept is a 400 that names it."""
    response = await kserve.generate("mock", **fields)

    if fields.get("cache_salt"):  # a tensor's bytes may be any
        assert response.status_code == 200
    else:
        assert (response.status_code, list(response.json())) == (400, ["error"])
        assert named in response.json()["error"]


@pytest.mark.parametrize("name", ["kv_transfer", "media_info"])
async def test_inputs_of_the_gateway_are_reserved(kserve, name):
    """With a `kv_transfer` a client would make the engine read any other engine's memory; with the
    digest in `media_info` it would use, or break, the image or audio of another client.
    """
    generated = await kserve.generate("mock", text_input="hi", **{name: "{}"})
    tensor = {"name": name, "datatype": "BYTES", "shape": [1], "data": ["{}"]}
    inferred = await kserve.infer("text", tensor)

    for response in (generated, inferred):
        assert response.status_code == 400
        assert response.json()["error"] == f"tensor '{name}': it is reserved for the gateway"


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        ({"data": ["x" * 513]}, "at most 512 characters, not 513"),
        ({"shape": [2], "data": ["x", "y"]}, "must be one element of BYTES"),
        ({"datatype": "INT32", "data": [1]}, "must be one element of BYTES"),
    ],
)
async def test_salts_of_tensors_have_the_limit_of_the_field(kserve, tensor, reason):
    salt = {"name": "cache_salt", "datatype": "BYTES", "shape": [1], **tensor}
    response = await kserve.infer("text", salt)

    assert (response.status_code, response.json()["error"]) == (
        400,
        f"tensor 'cache_salt': {reason}",
    )
