"""Request -> the exact tensors that the model receives."""

from typing import Any

import pytest

from openai_frontend.contracts.vllm import VLLMContract
from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import GenerationRequest, SamplingParams
from tests.contracts.recorded import INPROCESS, NVIDIA_VLLM, tensors

TRUE = ("BOOL", (1,), b"\x01")
NO_PARAMETERS = ("BYTES", (1,), b"\x02\x00\x00\x00{}")


def request(**values: Any) -> GenerationRequest:
    return GenerationRequest(request_id="r", **values)


def test_an_in_process_model_gets_token_ids_and_no_report_flags() -> None:
    """The in-process backend reports counts and finish reason unasked, so it is not asked."""

    expected = {
        "prompt_token_ids": ("INT32", (3,), bytes([1, 0, 0, 0, 2, 0, 0, 0, 0, 1, 0, 0])),
        "sampling_parameters": NO_PARAMETERS,
        "exclude_input_in_output": TRUE,
    }
    encoded = VLLMContract(INPROCESS).encode(request(prompt="a", prompt_token_ids=[1, 2, 256]))
    assert expected == encoded


def test_nvidias_backend_gets_text_and_every_report_flag() -> None:
    """NVIDIA's backend takes text only, and reports counts and finish reason when asked."""

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
    ],
)
def test_a_wanted_output_sets_its_flag(values: dict[str, Any], name: str) -> None:
    """Stream, token ids and logprobs are each asked for by a flag of their own."""

    encoded = VLLMContract(INPROCESS).encode(request(prompt_token_ids=[1], **values))
    assert encoded[name] == TRUE


@pytest.mark.parametrize(
    ("params", "text"),
    [
        (SamplingParams(), "{}"),
        (SamplingParams(max_tokens=5, temperature=0.0), '{"max_tokens":5,"temperature":0.0}'),
        (SamplingParams(stop=("a", "b")), '{"stop":["a","b"]}'),
        (SamplingParams(stop_token_ids=(7,)), '{"stop_token_ids":[7]}'),
        (SamplingParams(seed=0, min_tokens=1), '{"min_tokens":1,"seed":0}'),
        (SamplingParams(ignore_eos=True), '{"ignore_eos":true}'),
        (SamplingParams(top_k=-1, logprobs=0), '{"top_k":-1,"logprobs":0}'),
        (SamplingParams(stop=["é"]), '{"stop":["é"]}'),
    ],
)
def test_sampling_parameters_hold_only_what_is_set(params: SamplingParams, text: str) -> None:
    """A field at its default stays away, so that the engine's own default holds."""

    encoded = VLLMContract(INPROCESS).encode(request(prompt_token_ids=[1], sampling_params=params))
    assert encoded["sampling_parameters"][2][4:].decode() == text


def test_only_declared_inputs_are_sent() -> None:
    """An undeclared input would fail the request in the core."""

    config = {"input": tensors("text_input:STRING"), "output": tensors("text_output:STRING")}
    encoded = VLLMContract(config).encode(request(prompt="a", stream=True, return_token_ids=True))
    assert encoded == {"text_input": ("BYTES", (1,), b"\x01\x00\x00\x00a")}


def test_a_batching_model_gets_the_batch_dimension() -> None:
    """Where max_batch_size is set, shapes start with a batch of one."""

    config = {**INPROCESS, "max_batch_size": 8}
    encoded = VLLMContract(config).encode(request(prompt_token_ids=[1, 2]))
    assert encoded["prompt_token_ids"][1] == (1, 2)


def test_token_ids_take_the_declared_datatype() -> None:
    """A model that declares 64-bit ids gets 64-bit ids."""

    config = {"input": tensors("prompt_token_ids:INT64")}
    encoded = VLLMContract(config).encode(request(prompt_token_ids=[258]))
    assert encoded == {"prompt_token_ids": ("INT64", (1,), b"\x02\x01" + bytes(6))}


def test_a_text_model_refuses_a_prompt_without_text() -> None:
    """Token ids alone cannot be sent to a model that takes text."""

    with pytest.raises(InvalidRequest, match="takes prompts as text only") as refused:
        VLLMContract(NVIDIA_VLLM).encode(request(prompt_token_ids=[1]))
    assert refused.value.param == "prompt"


def test_a_token_id_beyond_the_datatype_is_refused() -> None:
    """A client's absurd id is the client's error."""

    with pytest.raises(InvalidRequest, match="token ids") as refused:
        VLLMContract(INPROCESS).encode(request(prompt_token_ids=[2**31]))
    assert refused.value.param == "prompt"


@pytest.mark.parametrize(
    ("config", "field", "supported"),
    [
        (INPROCESS, "prompt_token_ids", True),
        (INPROCESS, "return_token_ids", True),
        (INPROCESS, "logprobs", True),
        (INPROCESS, "top_k", True),
        (NVIDIA_VLLM, "prompt_token_ids", False),
        (NVIDIA_VLLM, "return_token_ids", False),
        (NVIDIA_VLLM, "stream", True),
        ({"input": tensors("text_input:STRING")}, "top_k", False),
        ({"input": tensors("return_logprobs:BOOL")}, "logprobs", False),
    ],
)
def test_support_follows_the_declared_tensors(
    config: dict[str, Any], field: str, supported: bool
) -> None:
    """A field is supported where the tensors that carry and answer it are declared."""

    assert VLLMContract(config).supports(field) == supported
