"""The type of the tables that map fields to the tensors of a kind of model. No behaviour."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from openai_frontend.contracts.contract import DeclaredInputs, TensorInput, Vocabulary
from openai_frontend.generation import GenerationRequest

Values = dict[str, Sequence[Any]]  # our name of an input -> its elements
TensorNames = tuple[str, ...]  # our names of tensors

# Our names of the outputs that are decoded
OUTPUTS = ("text_output", "finish_reason", "stop_reason", "num_input_tokens", "num_output_tokens")


class EncodingContext(NamedTuple):
    """One model's inputs and tokenizer, for `TensorMap.encode_custom`."""

    inputs: DeclaredInputs
    vocabulary: Vocabulary | None


EncodeCustom = Callable[[GenerationRequest, Values, EncodingContext], None]
EncodeArrays = Callable[[GenerationRequest, DeclaredInputs], dict[str, TensorInput]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMap:
    """The tensors of a kind of model. "Field" is one of SamplingParams or GenerationRequest."""

    fields: Mapping[str, str]  # field -> the input that gets its value unchanged
    # field -> the inputs that `encode_custom` writes for it
    custom_fields: Mapping[str, TensorNames] = field(default_factory=dict)
    encode_custom: EncodeCustom | None = None
    encode_arrays: EncodeArrays | None = None  # inputs of more than one dimension
    # field -> an output that the model must have as well
    required_outputs: Mapping[str, str] = field(default_factory=dict)
    flags: TensorNames = ()  # inputs that are true in every request
    exclude_prompt_flag: str = ""  # without this flag the prompt precedes the answer
    stream: str = "stream"
    logprobs_output: str = ""  # the output with one log probability for each token
    derives: frozenset[str] = frozenset()  # always derived, whatever the model declares
    can_include_stop: bool = True  # stop strings can be kept in the answer
    needs_vocabulary: frozenset[str] = frozenset()  # fields that need the model's tokenizer
    # member of extra_args -> its input and the type of its value
    extra_args: Mapping[str, tuple[str, type]] = field(default_factory=dict)
    adds_special_tokens: bool = False  # the model itself puts BOS and the like before a text
