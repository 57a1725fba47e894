"""The gateway builds Triton requests from known fields only: no reserved parameter, no shape that a
client computed, no duplicate output (Triton #8763, #8741, CVE-2026-24146, CVE-2026-24173,
CVE-2025-23316).
"""

import json
from typing import Any

import pytest

from openai_frontend.generation import RESERVED_ARGS
from tests.security.guarded import CHAT, check_refused

INFER = "/v2/models/mock/infer"
TEXT = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["hi"]}


def refused_by_kserve(response: Any) -> None:
    check_refused(response, 400, 404, 501)


RESERVED: dict[str, Any] = {
    "triton_final_response": True,
    "triton_enable_empty_final_response": True,
    "sequence_id": 2**64,
    "sequence_start": "yes",
    "priority": -1,
    "timeout": -1,
    "shared_memory_region": "/etc/passwd",
    "shared_memory_byte_size": 10,
    "binary_data_size": 2**40,
    "binary_data_output": "x",
    "classification": 2**31,
    "headers": {"x": "y"},
    "nested": {"a": [1]},
    "a" * 100_000: 1,
}


@pytest.mark.parametrize("name", RESERVED, ids=lambda name: name[:20])
def test_unknown_or_reserved_parameters_get_400(guarded, name):
    """Those of a request, of an input and of an output; none is ignored."""
    given = {name: RESERVED[name]}
    for fields in (
        {"inputs": [TEXT], "parameters": given},
        {"inputs": [{**TEXT, "parameters": given}]},
        {"inputs": [TEXT], "outputs": [{"name": "text_output", "parameters": given}]},
    ):
        response = guarded.post(INFER, fields)
        refused_by_kserve(response)
        assert response.status == 400


SHAPES = [
    [2**31], [2**62, 4], [2**32, 2**32], [-1], [0], [2**63], [2**64], [1.5], ["1"], [True],
    [1] * 10_000, [], None, "x", [[1]], [-(2**63)], [3], [1, 1, 1],
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: str(shape)[:30])
def test_shapes_that_do_not_match_the_data_get_400(guarded, shape):
    """The server checks for overflow and allocates nothing for the shape."""
    response = guarded.post(INFER, {"inputs": [{**TEXT, "shape": shape}]})
    refused_by_kserve(response)
    assert response.status == 400


@pytest.mark.parametrize("size", [2**31, 2**63, -1, 0, 10**30, "4", None])
def test_invalid_binary_sizes_get_400(guarded, size):
    """A size cannot reach beyond the end of the body."""
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1]}
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": size}}]}).encode()
    for length in (str(len(head)), "0", "-1", "9" * 30, "x", str(len(head) + 100)):
        response = guarded.ask(
            f"POST {INFER}",
            head + b"\xff\xff\xff\xff",
            f"inference-header-content-length: {length}",
        )
        refused_by_kserve(response)
        assert response.status == 400


TENSORS: list[dict[str, Any]] = [
    {"inputs": [TEXT, TEXT]},
    {"inputs": [TEXT], "outputs": [{"name": "text_output"}] * 2},
    {"inputs": [TEXT], "outputs": [{"name": "nobody's"}]},
    {"inputs": [{**TEXT, "name": "nobody's"}]},
    {"inputs": [{**TEXT, "name": "x" * 100_000}]},
    {"inputs": [{**TEXT, "datatype": "FP64"}]},
    {"inputs": [{**TEXT, "datatype": "EVIL"}]},
    {"inputs": [{**TEXT, "data": [{"a": 1}]}]},
    {"inputs": [{**TEXT, "data": [["hi"] * 2]}]},
    {"inputs": [TEXT] * 5_000},
    {"inputs": []},
    {"inputs": {}},
    {},
]


@pytest.mark.parametrize("fields", TENSORS, ids=range(len(TENSORS)))
def test_undeclared_or_duplicate_tensors_get_400(guarded, fields):
    """A request may have each input and output that the model declares once."""
    response = guarded.post(INFER, fields)
    refused_by_kserve(response)
    assert response.status == 400


def test_unknown_sampling_parameters_in_a_tensor_get_400(guarded):
    given: Any
    for given in ({"evil": 1}, {"logits_processors": ["os.system"]}, {"n": 10**6}, [], "x"):
        sampling = {
            "name": "sampling_parameters",
            "datatype": "BYTES",
            "shape": [1],
            "data": [json.dumps(given)],
        }
        response = guarded.post(INFER, {"inputs": [TEXT, sampling]})
        refused_by_kserve(response)
        assert response.status == 400


UNKNOWN = ["triton_x", "__class__", "self", "model_config", "model_extra", "return_dict", "x" * 500,
           "server", "request_id", "adapter", "relay", "cache_salt_", "n\0", ""]  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN, ids=range(len(UNKNOWN)))
def test_unknown_fields_do_not_reach_the_model(guarded, name):
    def told(**fields: Any) -> Any:
        body = guarded.post(CHAT, {"model": "mirror", **fields}).body
        return json.loads(json.loads(body)["choices"][0]["message"]["content"])

    assert told(**{name: {"evil": [1]}}) == told()


# Fields that are objects of any names -> names that the gateway, the engine or the template sets
RESERVED_NAMES = {
    "vllm_xargs": sorted(RESERVED_ARGS),
    "kv_transfer_params": ["do_remote_prefill", "remote_host"],
    "ec_transfer_params": ["x"],
    "mm_processor_kwargs": ["num_crops"],
    "media_io_kwargs": ["video"],
    "chat_template_kwargs": ["messages", "tools", "self", "raise_exception", "tokenize"],
}
VALUES: list[Any] = [1, "x", True, [1], None, {"a": 1}]


@pytest.mark.parametrize("field", RESERVED_NAMES)
def test_names_of_the_gateway_in_an_object_get_400(guarded, field):
    """With any value; so does a value that is not an object."""
    objects = [{name: value} for name in RESERVED_NAMES[field] for value in VALUES]
    for value in (*objects, *VALUES[:4]):
        response = guarded.post(CHAT, {field: value})

        check_refused(response, 400)
        assert json.loads(response.body)["error"]["param"].startswith(field)


def test_class_names_as_logits_processors_get_400(guarded):
    """vLLM's `logits_processors` accepts names of classes."""
    for given in ("os.system", ["os.system"], [{"qualname": "os.system"}]):
        check_refused(guarded.post(CHAT, {"logits_processors": given}))
