"""Requests to vLLM models become the exact tensors that the model receives."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from openai_frontend.contracts.vllm import VLLMContract
from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import (
    Adapter,
    GenerationRequest,
    KVTransfer,
    SamplingParams,
    StructuredOutputs,
)
from tests.fast.contracts.recorded import INPROCESS, NVIDIA_VLLM, Letters, tensors, values

TRUE = ("BOOL", (1,), b"\x01")
NO_PARAMETERS = ("BYTES", (1,), b"\x02\x00\x00\x00{}")


def request(**values: Any) -> GenerationRequest:
    return GenerationRequest(request_id="r", **values)


def test_in_process_model_gets_token_ids_and_no_report_flags() -> None:
    """The in-process backend always reports counts and finish reason, so it needs no flags."""

    expected = {
        "prompt_token_ids": ("INT32", (3,), bytes([1, 0, 0, 0, 2, 0, 0, 0, 0, 1, 0, 0])),
        "sampling_parameters": NO_PARAMETERS,
        "exclude_input_in_output": TRUE,
    }
    encoded = VLLMContract(INPROCESS).encode(request(prompt="a", prompt_token_ids=[1, 2, 256]))
    assert expected == encoded


def test_nvidias_backend_gets_text_and_every_report_flag() -> None:
    """NVIDIA's backend takes text only, and reports counts and finish reason only if a
    flag is set.
    """

    expected = {
        "text_input": ("BYTES", (1,), b"\x03\x00\x00\x00\xc3\xa9!"),
        "sampling_parameters": NO_PARAMETERS,
        "exclude_input_in_output": TRUE,
        "return_finish_reason": TRUE,
        "return_num_input_tokens": TRUE,
        "return_num_output_tokens": TRUE,
    }
    encoded = VLLMContract(NVIDIA_VLLM).encode(request(prompt="é!", prompt_token_ids=[1]))
    assert expected == encoded


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"stream": True}, "stream"),
        ({"return_token_ids": True}, "return_token_ids"),
        ({"sampling_params": SamplingParams(logprobs=0)}, "return_logprobs"),
        ({"sampling_params": SamplingParams(logprob_token_ids=[7])}, "return_logprobs"),
    ],
)
def test_requested_output_sets_its_flag(values: dict[str, Any], name: str) -> None:
    """Stream, token ids and logprobs each have a flag of their own."""

    encoded = VLLMContract(INPROCESS).encode(request(prompt_token_ids=[1], **values))
    assert encoded[name] == TRUE


@pytest.mark.parametrize(
    ("params", "text"),
    [
        (SamplingParams(), "{}"),
        (SamplingParams(max_tokens=5, temperature=0.0), '{"max_tokens":5,"temperature":0.0}'),
        (SamplingParams(stop=("a", "b")), '{"stop":["a","b"]}'),
        (SamplingParams(seed=0, min_tokens=1), '{"min_tokens":1,"seed":0}'),
        (SamplingParams(stop=["é"]), '{"stop":["é"]}'),
        (SamplingParams(max_tokens=0, prompt_logprobs=-1), '{"max_tokens":0,"prompt_logprobs":-1}'),
        (SamplingParams(logit_bias={5: -1.5}), '{"logit_bias":{"5":-1.5}}'),
        (SamplingParams(extra_args={"a": [1]}), '{"extra_args":{"a":[1]}}'),
        (
            SamplingParams(structured_outputs=StructuredOutputs(choice=("a", "b"))),
            r'{"structured_outputs":"{\"choice\":[\"a\",\"b\"]}"}',
        ),
        (
            SamplingParams(structured_outputs=StructuredOutputs(json='{"type": "object"}')),
            r'{"structured_outputs":"{\"json\":{\"type\": \"object\"}}"}',
        ),
    ],
)
def test_sampling_parameters_contain_only_set_fields(params: SamplingParams, text: str) -> None:
    """A field at its default is not sent, so that the engine's own default applies."""

    encoded = VLLMContract(INPROCESS).encode(request(prompt_token_ids=[1], sampling_params=params))
    assert encoded["sampling_parameters"][2][4:].decode() == text


NO_SCHEMAS = ['{}, "regex":"x"', '{}} ,{"json":{}', "", "{", "\ud800", "[" * 2000 + "]" * 2000]


@pytest.mark.parametrize("text", NO_SCHEMAS, ids=range(len(NO_SCHEMAS)))
def test_schema_that_is_not_json_is_refused(text: str) -> None:
    """The gateway inserts the text into its own JSON, where it could inject a second constraint."""

    params = SamplingParams(structured_outputs=StructuredOutputs(json=text))
    with pytest.raises(InvalidRequest, match="json is not JSON") as refused:
        VLLMContract(INPROCESS).encode(request(prompt_token_ids=[1], sampling_params=params))
    assert refused.value.param == "structured_outputs"


def test_choices_share_an_encoded_constraint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large schema is encoded once for all choices and sent with each."""

    encoded = []
    dumps = orjson.dumps
    monkeypatch.setattr(
        orjson, "dumps", lambda *given, **how: encoded.append(0) or dumps(*given, **how)
    )
    shared = StructuredOutputs(json={"type": "object"})
    contract = VLLMContract(INPROCESS)
    texts = []
    for seed in (1, 2):
        params = SamplingParams(seed=seed, structured_outputs=shared)
        tensors = contract.encode(request(prompt_token_ids=[1], sampling_params=params))
        texts.append(tensors["sampling_parameters"][2][4:].decode())
    constraint = r'"structured_outputs":"{\"json\":{\"type\":\"object\"}}"'
    assert texts == [f'{{"seed":{seed},{constraint}}}' for seed in (1, 2)]
    assert len(encoded) == 2 + 2  # the constraint: as JSON, as a JSON string; then the rest twice


def test_different_constraints_share_nothing() -> None:
    """Another constraint is encoded anew instead of reusing the previous one."""

    contract = VLLMContract(INPROCESS)
    texts = []
    for word in ("a", "b"):
        params = SamplingParams(structured_outputs=StructuredOutputs(regex=word))
        encoded = contract.encode(request(prompt_token_ids=[1], sampling_params=params))
        texts.append(encoded["sampling_parameters"][2][4:].decode())
    assert [word in text[-8:] for word, text in zip("ab", texts, strict=True)] == [True, True]


def test_numbers_beyond_64_bits_are_refused() -> None:
    """orjson cannot encode them."""

    params = SamplingParams(seed=2**64)
    with pytest.raises(InvalidRequest, match="64-bit"):
        VLLMContract(INPROCESS).encode(request(prompt_token_ids=[1], sampling_params=params))


@pytest.mark.parametrize(
    ("values", "name", "tensor"),
    [
        ({"priority": -2}, "priority", ("INT32", (1,), b"\xfe\xff\xff\xff")),
        ({"cache_salt": "é"}, "cache_salt", ("BYTES", (1,), b"\x02\x00\x00\x00\xc3\xa9")),
        ({"stream_interval": 3}, "stream_interval", ("INT32", (1,), b"\x03\x00\x00\x00")),
    ],
)
def test_other_fields_have_their_own_tensors(
    values: dict[str, Any], name: str, tensor: Any
) -> None:
    """Priority, cache salt and interval are not sampling parameters, and most requests
    lack them.
    """

    contract = VLLMContract(INPROCESS)
    assert contract.encode(request(prompt_token_ids=[1], **values))[name] == tensor
    assert name not in contract.encode(request(prompt_token_ids=[1]))


def test_priority_beyond_the_datatype_is_refused() -> None:
    """The tensor has 32 bits."""

    with pytest.raises(InvalidRequest, match="priority") as refused:
        VLLMContract(INPROCESS).encode(request(prompt_token_ids=[1], priority=2**31))
    assert refused.value.param == "priority"


def test_only_declared_inputs_are_sent() -> None:
    """An undeclared input would fail the request in the core."""

    config = {"input": tensors("text_input:STRING"), "output": tensors("text_output:STRING")}
    encoded = VLLMContract(config).encode(request(prompt="a", stream=True, return_token_ids=True))
    assert encoded == {"text_input": ("BYTES", (1,), b"\x01\x00\x00\x00a")}


def test_batching_model_gets_the_batch_dimension() -> None:
    """If max_batch_size is set, shapes start with a batch of one."""

    config = {**INPROCESS, "max_batch_size": 8}
    encoded = VLLMContract(config).encode(request(prompt_token_ids=[1, 2]))
    assert encoded["prompt_token_ids"][1] == (1, 2)


def test_token_ids_have_the_declared_datatype() -> None:
    """A model that declares 64-bit ids gets 64-bit ids."""

    config = {"input": tensors("prompt_token_ids:INT64")}
    encoded = VLLMContract(config).encode(request(prompt_token_ids=[258]))
    assert encoded == {"prompt_token_ids": ("INT64", (1,), b"\x02\x01" + bytes(6))}


def test_text_model_refuses_a_prompt_without_text() -> None:
    """Token ids alone cannot be sent to a model that takes text."""

    with pytest.raises(InvalidRequest, match="takes prompts as text only") as refused:
        VLLMContract(NVIDIA_VLLM).encode(request(prompt_token_ids=[1]))
    assert refused.value.param == "prompt"


def test_token_id_beyond_the_datatype_is_refused() -> None:
    """It is an invalid request."""

    with pytest.raises(InvalidRequest, match="token ids") as refused:
        VLLMContract(INPROCESS).encode(request(prompt_token_ids=[2**31]))
    assert refused.value.param == "prompt"


@pytest.mark.parametrize(
    ("config", "field", "supported"),
    [
        (INPROCESS, "prompt_token_ids", True),
        (INPROCESS, "stream_interval", True),
        (NVIDIA_VLLM, "stream_interval", False),
        (NVIDIA_VLLM, "prompt_token_ids", False),
        (NVIDIA_VLLM, "stream", True),
        ({"input": tensors("text_input:STRING")}, "top_k", False),
        ({"input": tensors("return_logprobs:BOOL")}, "logprobs", False),
    ],
)
def test_support_follows_the_declared_tensors(
    config: dict[str, Any], field: str, supported: bool
) -> None:
    """A field is supported if the tensors that carry and answer it are declared."""

    assert VLLMContract(config).supports(field) == supported


@pytest.mark.parametrize("config", [INPROCESS, NVIDIA_VLLM])
def test_adapter_is_sent_by_name_alone(config: dict[str, Any]) -> None:
    """NVIDIA's backend expects only the name, because the model knows the adapter's path."""
    adapter = Adapter(name="pirate", id=3, path=Path("/adapters/pirate"))
    params = SamplingParams(top_k=2)
    asked = request(prompt="a", prompt_token_ids=[1], sampling_params=params, adapter=adapter)

    encoded = VLLMContract(config).encode(asked)

    assert orjson.loads(encoded["sampling_parameters"][2][4:]) == {
        "top_k": 2,
        "lora_name": "pirate",
    }
    assert b"/adapters" not in b"".join(tensor[2] for tensor in encoded.values())


def test_nvidia_backend_gets_no_second_bos() -> None:
    """Its engine adds BOS before a text itself, and a chat template may have done so already."""

    request = GenerationRequest(request_id="r", prompt="<s>Hi")
    inputs = VLLMContract(NVIDIA_VLLM, Letters()).encode(request)
    assert values(inputs["text_input"]) == ["Hi"]


def test_transfers_reach_only_models_that_declare_them() -> None:
    """As JSON; a request without one sends nothing more."""
    transfer = KVTransfer(params={"do_remote_prefill": True}, expires_ns=5)
    one = request(prompt="a", prompt_token_ids=[1], kv_transfer=transfer)
    config: dict[str, Any] = {**INPROCESS}
    config["input"] = config["input"] + tensors("kv_transfer:STRING")
    config["output"] = config["output"] + tensors("kv_transfer_params:STRING")
    contract = VLLMContract(config)

    encoded = contract.encode(one)
    assert set(encoded) - set(contract.encode(replace(one, kv_transfer=None))) == {"kv_transfer"}
    _, _, content = encoded["kv_transfer"]
    assert orjson.loads(bytes(content)[4:]) == {
        "params": {"do_remote_prefill": True},
        "expires_ns": 5,
        "rejected": False,
    }
    assert contract.supports("kv_transfer")
    assert not VLLMContract(NVIDIA_VLLM).supports("kv_transfer")
    assert "kv_transfer" not in VLLMContract(NVIDIA_VLLM).encode(one)
