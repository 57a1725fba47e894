"""Text models of any backend: their tensors have the default names or names from the options."""

from typing import Any

import pytest

from openai_frontend.contracts.select import ContractOptions, SelectedContracts, select_contracts
from openai_frontend.errors import InvalidRequest, ModelUnavailable
from openai_frontend.generation import (
    CompletionDelta,
    GenerationRequest,
    SamplingParams,
    TokenCounts,
)
from tests.fast.contracts.recorded import (
    PYTHON,
    PYTHON_TENSORS,
    Letters,
    RecordedOutputs,
    tensors,
    values,
)


def chosen(
    inputs: str, outputs: str = "text_output:STRING", *, decoupled: bool = False, **named: Any
) -> SelectedContracts:
    """Return the contract of a model whose inputs are optional, except for its texts."""
    declared = [
        {**each, "optional": each["data_type"] != "TYPE_STRING"} for each in tensors(inputs)
    ]
    config = {"backend": "python", "input": declared, "output": tensors(outputs)}
    options = ContractOptions(tensors=named)
    return select_contracts(config, options=options, decoupled=decoupled, vocabulary=Letters())


def request(**params: Any) -> GenerationRequest:
    return GenerationRequest(
        request_id="r",
        prompt="Hi",
        prompt_token_ids=[1],
        sampling_params=SamplingParams(**params),
        stream=True,
    )


def told(model: SelectedContracts, **params: Any) -> dict[str, Any]:
    assert model.generation is not None
    inputs = model.generation.encode(request(**params))
    return {name: values(tensor) for name, tensor in inputs.items()}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (chosen("text_input:STRING"), {"text_input": ["Hi"]}),
        (chosen("PROMPT:STRING", "REPLY:STRING"), {"PROMPT": ["Hi"]}),
        (chosen("a:STRING b:FP32", text_input="a"), {"a": ["Hi"]}),
        (
            chosen("PROMPT:STRING HEAT:FP32", temperature="HEAT"),
            {"PROMPT": ["Hi"], "HEAT": [0.5]},
        ),
        (
            chosen("text_input:STRING temperature:FP64"),
            {"text_input": ["Hi"], "temperature": [0.5]},
        ),
        (chosen("text_input:STRING stream:BOOL"), {"text_input": ["Hi"]}),
        (
            chosen("text_input:STRING stream:BOOL", decoupled=True),
            {"text_input": ["Hi"], "stream": [True]},
        ),
    ],
)
def test_named_tensors_are_sent(model: SelectedContracts, expected: dict[str, Any]) -> None:
    """Tensors have their default name or the option's; the only text input needs neither."""

    assert (model.name, told(model, temperature=0.5)) == ("python", expected)


def test_required_inputs_get_neutral_values() -> None:
    """They get them if the request sets no value. `max_tokens` has no neutral value, so it is
    required.
    """

    model = select_contracts(
        PYTHON, options=ContractOptions(tensors=PYTHON_TENSORS), vocabulary=Letters()
    )
    assert told(model, max_tokens=3) == {"PROMPT": ["Hi"], "HEAT": [1.0], "LONGEST": [3]}
    with pytest.raises(InvalidRequest) as refused:
        told(model)
    assert refused.value.param == "max_tokens"


@pytest.mark.parametrize(
    ("inputs", "outputs", "named", "reason"),
    [
        ("a:STRING b:STRING", "c:STRING", {"text_output": "c"}, "no supported endpoint"),
        ("a:STRING", "c:STRING d:STRING", {"text_input": "a"}, "no supported endpoint"),
        ("a:STRING", "c:STRING", {"text_input": "x"}, "no input 'x'"),
        ("a:FP32 t:STRING", "c:STRING", {"text_input": "a"}, "no input 'a' of type TYPE_STR"),
        ("a:STRING", "c:STRING", {"temperature": "x"}, "names an input 'x' that it does not have"),
        ("a:STRING", "c:STRING", {"warmth": "a"}, "unknown name 'warmth'; use"),
        ("a:STRING t:BF16", "c:STRING", {"temperature": "t"}, "'t' has the unsupported type BF16"),
    ],
)
def test_unusable_model_has_a_reason(
    inputs: str, outputs: str, named: dict[str, Any], reason: str
) -> None:
    """The reason names the tensor."""

    with pytest.raises(ModelUnavailable, match=reason):
        chosen(inputs, outputs, **named)


def test_required_unknown_input_makes_a_model_unavailable() -> None:
    """Every request would fail."""

    with pytest.raises(ModelUnavailable, match="'HEAT' is required"):
        select_contracts(PYTHON)


def test_text_alone_gives_a_complete_answer() -> None:
    """Token counts, finish reason and stop strings are derived from the text."""

    contract = chosen("text_input:STRING").generation
    assert contract is not None
    decode = contract.decoder(request(stop=["END"]))
    assert decode(RecordedOutputs(final=True, text_output=b"ab END")) == CompletionDelta(
        "ab ", finish_reason="stop", stop_reason="END", counts=TokenCounts(1, 3)
    )


def test_outputs_of_the_model_are_not_replaced() -> None:
    """The options give the names of these outputs."""

    contract = chosen(
        "p:STRING",
        "t:STRING r:STRING n:INT32",
        text_output="t",
        finish_reason="r",
        num_output_tokens="n",
    ).generation
    assert contract is not None
    decode = contract.decoder(request())
    assert decode(RecordedOutputs(final=True, t=b"ab", r=b"length", n=7)) == CompletionDelta(
        "ab", finish_reason="length", counts=TokenCounts(1, 7)
    )
