"""An adapter as TensorRT-LLM's inputs, with the model's own datatypes and ranks."""

from pathlib import Path
from typing import Any

import numpy
import pytest

from openai_frontend.contracts import TensorInput
from openai_frontend.contracts.tensorrt_llm import tensorrt_llm
from openai_frontend.errors import ModelUnavailable
from openai_frontend.generation import Adapter, AdapterWeights, GenerationRequest

ADAPTER = Adapter(name="pirate", id=7, path=Path("/adapters/pirate"))
TASK = ("UINT64", (1, 1), (7).to_bytes(8, "little"))


def config(weights: str = "TYPE_FP16", *, batch: int = 64, dims: int = 2) -> dict[str, Any]:
    """The three inputs as NVIDIA's config.pbtxt declares them."""
    inputs = [
        ("text_input", "TYPE_STRING", [1]),
        ("lora_task_id", "TYPE_UINT64", [1]),
        ("lora_weights", weights, [-1] * dims),
        ("lora_config", "TYPE_INT32", [-1, 3]),
    ]
    return {
        "max_batch_size": batch,
        "input": [
            {"name": n, "data_type": t, "dims": d, "optional": n != "text_input"}
            for n, t, d in inputs
        ],
        "output": [{"name": "text_output", "data_type": "TYPE_STRING", "dims": [-1]}],
    }


def encode(declared: dict[str, Any], weights: AdapterWeights | None) -> dict[str, TensorInput]:
    """Return the encoded tensors of the adapter."""
    contract = tensorrt_llm(declared, decoupled=True, vocabulary=None)
    request = GenerationRequest(
        request_id="r", prompt="hi", adapter=ADAPTER, adapter_weights=weights
    )
    inputs = contract.encode(request)
    del inputs["text_input"]
    return inputs


def arrays(weights: Any) -> AdapterWeights:
    return AdapterWeights(weights=weights, config=numpy.array([[[0, 0, 4]]], dtype="<i4"))


def test_known_adapter_is_sent_by_id() -> None:
    assert encode(config(), None) == {"lora_task_id": TASK}


def test_adapter_with_weights() -> None:
    """The tensors have the shapes of the files: [1, modules, values] and [1, modules, 3]."""
    weights = numpy.array([[[1.0, -2.5]]], dtype="<f2")

    assert encode(config(), arrays(weights)) == {
        "lora_task_id": TASK,
        "lora_weights": ("FP16", (1, 1, 2), weights.tobytes()),
        "lora_config": ("INT32", (1, 1, 3), numpy.array([0, 0, 4], dtype="<i4").tobytes()),
    }


def test_model_without_batching_has_no_batch_dimension() -> None:
    encoded = encode(config(batch=0), arrays(numpy.ones((1, 1, 2), "<f2")))

    assert [shape for _, shape, _ in encoded.values()] == [(1,), (1, 2), (1, 3)]


@pytest.mark.parametrize("declared", ["TYPE_FP16", "TYPE_FP32", "TYPE_BF16"])
@pytest.mark.parametrize("stored", ["<f2", "<f4", "bfloat16"])
def test_weights_are_converted_to_the_declared_type(declared: str, stored: str) -> None:
    """Values that all three types represent stay equal; numpy reads bfloat16 as two raw bytes."""
    numbers = numpy.array([[[1.0, -2.5, 0.15625]]], dtype="<f4")
    halves = (numbers.view("<u4") >> 16).astype("<u2")
    kept = halves.view("V2") if stored == "bfloat16" else numbers.astype(stored)

    datatype, _, raw = encode(config(declared), arrays(kept))["lora_weights"]

    as_declared = {
        "FP16": numbers.astype("<f2").tobytes(),
        "FP32": numbers.tobytes(),
        "BF16": halves.tobytes(),
    }
    assert raw == as_declared[datatype]


def test_bfloat16_rounding() -> None:
    """Values are rounded to the nearest, and ties to even."""
    bits = numpy.array([[[0x3F808000, 0x3F818000, 0x3F808001]]], dtype="<u4")

    encoded = encode(config("TYPE_BF16"), arrays(bits.view("<f4")))

    assert numpy.frombuffer(encoded["lora_weights"][2], "<u2").tolist() == [0x3F80, 0x3F82, 0x3F81]


def test_weights_with_extra_dimensions_are_refused() -> None:
    """The model declares no dimensions for their elements."""
    with pytest.raises(ModelUnavailable, match="lora_weights does not fit"):
        encode(config(), arrays(numpy.ones((2, 1, 1, 2), "<f2")))


@pytest.mark.parametrize(
    ("lacking", "supported", "takes_weights"),
    [
        (set(), True, True),
        ({"lora_weights"}, True, False),
        ({"lora_config"}, True, False),
        ({"lora_task_id"}, False, False),
    ],
)
def test_adapter_support_follows_the_declared_inputs(
    lacking: set[str], supported: bool, takes_weights: bool
) -> None:
    """A model without inputs for weights gets only ids of adapters that it knows."""
    declared = config()
    declared["input"] = [each for each in declared["input"] if each["name"] not in lacking]
    contract = tensorrt_llm(declared, decoupled=True, vocabulary=None)

    assert contract.supports("adapter") is supported
    assert contract.supports("adapter_weights") is takes_weights
