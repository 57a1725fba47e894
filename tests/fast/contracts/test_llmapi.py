"""The tensors of TensorRT-LLM's LLM-API model: encoded requests and decoded responses."""

from pathlib import Path
from typing import Any

import pytest

from openai_frontend.contracts import Contract
from openai_frontend.contracts.select import ContractOptions, select_contracts
from openai_frontend.errors import InferenceFailed, InvalidRequest
from openai_frontend.generation import (
    Adapter,
    CompletionDelta,
    GenerationRequest,
    SamplingParams,
    TokenCounts,
)
from tests.fast.contracts.recorded import (
    CONSTRAINED_LLMAPI,
    DECOUPLED_LLMAPI,
    LLMAPI,
    Letters,
    RecordedOutputs,
    values,
)

ALWAYS = {
    "text_input": ["Hi"],
    "sampling_param_exclude_input_from_output": [True],
    "return_finish_reason": [True],
    "return_stop_reason": [True],
}


def contract(config: dict[str, Any] = LLMAPI) -> Contract:
    """Return the contract that is selected for a config."""
    chosen = select_contracts(config, vocabulary=Letters())
    assert chosen.name == "llmapi"
    assert chosen.generation is not None
    return chosen.generation


def request(*, stream: bool = False, adapter: Adapter | None = None, **params: Any) -> Any:
    return GenerationRequest(
        request_id="r",
        prompt="<s>Hi",
        prompt_token_ids=[1, 2, 3],
        sampling_params=SamplingParams(**params),
        stream=stream,
        adapter=adapter,
    )


def told(config: dict[str, Any] = LLMAPI, **params: Any) -> dict[str, Any]:
    """Return the encoded tensors of a request, without those of every request."""
    inputs = contract(config).encode(request(**params))
    plain = {name: values(tensor) for name, tensor in inputs.items()}
    assert {name: plain.pop(name) for name in ALWAYS} == ALWAYS
    return plain


ADAPTER = Adapter(name="x", id=7, path=Path("/loras/x"))


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, {}),
        ({"max_tokens": 9}, {"sampling_param_max_tokens": [9]}),
        ({"temperature": 0.0}, {"sampling_param_top_k": [1]}),
        (
            {"temperature": 0.5},
            {"sampling_param_temperature": [0.5], "sampling_param_top_p": [1.0]},
        ),
        ({"top_p": 0.5, "top_k": -1}, {"sampling_param_top_p": [0.5], "sampling_param_top_k": [0]}),
        ({"presence_penalty": 1.0}, {"sampling_param_presence_penalty": [1.0]}),
        ({"frequency_penalty": 1.0}, {"sampling_param_frequency_penalty": [1.0]}),
        ({"seed": -1}, {"sampling_param_seed": [2**64 - 1]}),
        ({"stop": ["a", "b"]}, {"sampling_param_stop": ["a", "b"]}),
        ({"adapter": ADAPTER}, {"lora_id": [7], "lora_name": ["x"], "lora_path": ["/loras/x"]}),
    ],
)
def test_each_field_has_its_tensor(params: dict[str, Any], expected: dict[str, Any]) -> None:
    """The tensor has the model's name. Fields that the request does not set are not sent."""

    assert told(**params) == expected


@pytest.mark.parametrize(
    ("config", "expected"), [(LLMAPI, {}), (DECOUPLED_LLMAPI, {"streaming": [True]})]
)
def test_only_decoupled_models_stream(config: dict[str, Any], expected: dict[str, Any]) -> None:
    """Other models fail a request with `stream`, so their stream has a single chunk."""

    assert told(config, stream=True) == expected
    assert contract(config).supports("stream") == bool(expected)


def test_plug_in_selects_the_models_logits_processor() -> None:
    """The model must declare the input for it."""

    held = {"logits_processor": "json_only"}
    name = "sampling_param_logits_post_processor_name"
    assert told(CONSTRAINED_LLMAPI, extra_args=held) == {name: ["json_only"]}
    assert "logits_processor" in (contract(CONSTRAINED_LLMAPI).extra_args or ())
    assert "logits_processor" not in (contract().extra_args or ())


def test_processor_that_the_model_does_not_have_is_refused() -> None:
    """`model.yaml` declares the names; the model itself would fail with a 500."""

    options = ContractOptions(logits_processors=["json_only", "dates"])
    chosen = select_contracts(CONSTRAINED_LLMAPI, options=options, vocabulary=Letters())
    assert chosen.generation is not None
    chosen.generation.encode(request(extra_args={"logits_processor": "dates"}))
    with pytest.raises(InvalidRequest, match="no processor 'os'; use one of dates, json_only"):
        chosen.generation.encode(request(extra_args={"logits_processor": "os"}))


def test_model_without_processors_does_not_take_their_names() -> None:
    """It declares the input, but its `model.yaml` has no processors."""

    options = ContractOptions(logits_processors=())
    chosen = select_contracts(CONSTRAINED_LLMAPI, options=options, vocabulary=Letters())
    assert chosen.generation is not None
    assert "logits_processor" not in (chosen.generation.extra_args or ())
    with pytest.raises(InvalidRequest, match=r"'vllm_xargs\.logits_processor' is not supported"):
        chosen.generation.encode(request(extra_args={"logits_processor": "dates"}))


@pytest.mark.parametrize("args", [{"logits_processor": 3}, {"other": "x"}])
def test_other_extra_args_are_refused_by_name(args: dict[str, Any]) -> None:
    """The model has no inputs for them."""

    with pytest.raises(InvalidRequest) as refused:
        told(CONSTRAINED_LLMAPI, extra_args=args)
    assert refused.value.param == f"vllm_xargs.{next(iter(args))}"


def test_stream_of_cumulative_texts_becomes_deltas() -> None:
    """Each response has the text so far, and the finish reason "None" until the end; the tokenizer
    counts the tokens.
    """

    responses = [
        RecordedOutputs(text_output=[b"a"], finish_reason=[b"None"], stop_reason=[b"None"]),
        RecordedOutputs(
            text_output=["a\ufffd".encode()], finish_reason=[b"None"], stop_reason=[b"None"]
        ),
        RecordedOutputs(
            final=True,
            text_output=["aé".encode()],
            finish_reason=[b"length"],
            stop_reason=[b"None"],
        ),
    ]
    decode = contract(DECOUPLED_LLMAPI).decoder(request(stream=True))
    assert [decode(each) for each in responses] == [
        CompletionDelta("a"),
        CompletionDelta(""),
        CompletionDelta("é", finish_reason="length", counts=TokenCounts(3, 2)),
    ]


@pytest.mark.parametrize(
    ("told", "expected"), [(b"END", "END"), (b"13", 13), (b"None", None), (b"", None)]
)
def test_whole_answer_has_its_stop_reason(told: bytes, expected: Any) -> None:
    """The stop reason is a stop string or a stop token."""

    outputs = RecordedOutputs(
        final=True, text_output=[b"ab"], finish_reason=[b"stop"], stop_reason=[told]
    )
    (delta,) = [contract().decoder(request())(outputs)]
    assert delta == CompletionDelta(
        "ab", finish_reason="stop", stop_reason=expected, counts=TokenCounts(3, 2)
    )


@pytest.mark.parametrize("reason", [b"timeout", b"cancelled"])
def test_timeout_or_cancel_in_the_engine_is_a_failure(reason: bytes) -> None:
    """It is never reported as `stop`."""

    outputs = RecordedOutputs(final=True, text_output=[b"a"], finish_reason=[reason])
    with pytest.raises(InferenceFailed, match=reason.decode()):
        contract().decoder(request())(outputs)


def test_cumulative_log_probability_is_reported_if_it_is_requested() -> None:
    """The model writes the number as text, although it declares a number."""

    asked = {"return_cumulative_logprob": True}
    assert told(extra_args=asked) == {"return_cumulative_logprob": [True]}
    outputs = RecordedOutputs(
        final=True, text_output=[b"a"], finish_reason=[b"stop"], cumulative_logprob=[b"-1.5"]
    )
    delta = contract().decoder(request(extra_args=asked))(outputs)
    assert delta.counts is not None
    assert delta.counts.metrics == {"cumulative_logprob": -1.5}


def test_stop_string_that_the_model_misses_is_cut() -> None:
    """The model compares tokens, so it misses a stop string that starts within a token."""

    outputs = RecordedOutputs(final=True, text_output=[b"one END"], finish_reason=[b"length"])
    delta = contract().decoder(request(stop=["e E"]))(outputs)
    assert (delta.text, delta.finish_reason, delta.stop_reason) == ("on", "stop", "e E")
