"""The tensors of any other text model: default names, or names that the operator configures."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from openai_frontend.contracts import Vocabulary
from openai_frontend.contracts.tensor_fields import TensorFields, TensorMap
from openai_frontend.errors import ModelUnavailable
from openai_frontend.media.modalities import ImageSupport

# Fields passed to an input of the same name, or of the name in `tensors`
FIELDS = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "ignore_eos",
    "bad_words",
)


def python(
    config: Mapping[str, Any],
    *,
    tensors: Mapping[str, str] = MappingProxyType({}),
    decoupled: bool,
    vocabulary: Vocabulary | None,
    images: ImageSupport | None = None,
) -> TensorFields:
    """The contract of one model, without `DerivedOutputs` around it.

    Raises ModelUnavailable if it is not clear which tensors are the prompt and the answer.
    """
    named = {
        "text_input": text_tensor(config, "input", tensors),
        "text_output": text_tensor(config, "output", tensors),
    }
    return TensorFields(
        config,
        _TENSOR_MAP,
        tensors={**tensors, **named},
        decoupled=decoupled,
        vocabulary=vocabulary,
    )


def text_tensor(config: Mapping[str, Any], side: str, tensors: Mapping[str, str]) -> str:
    """The name of the prompt tensor or the answer tensor; `side` is "input" or "output"."""
    ours = f"text_{side}"
    texts = [
        tensor["name"] for tensor in config.get(side, ()) if tensor["data_type"] == "TYPE_STRING"
    ]
    name = tensors.get(ours, ours)
    if name in texts:
        return name
    if ours in tensors:
        raise ModelUnavailable(f"it has no {side} '{name}' of type TYPE_STRING")
    if len(texts) != 1:
        raise ModelUnavailable(
            f"it has no {side} '{ours}', and {len(texts)} of its {side}s hold text; name one as "
            f"'{ours}' in `tensors`"
        )
    return str(texts[0])


_TENSOR_MAP = TensorMap(fields={each: each for each in FIELDS}, derives=frozenset({"stop"}))
