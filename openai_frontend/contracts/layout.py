"""Which tensor of a kind of model carries what: a table for each kind. No behaviour."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from openai_frontend.contracts.contract import DeclaredInputs, TensorInput
from openai_frontend.contracts.vocabulary import Vocabulary
from openai_frontend.generation import GenerationRequest

Values = dict[str, Sequence[Any]]  # our name of an input -> its elements
Needs = tuple[str, ...]  # our names of tensors

# Our names of what a model may answer
OUTPUTS = ("text_output", "finish_reason", "stop_reason", "num_input_tokens", "num_output_tokens")


class Known(NamedTuple):
    """What is known of one model."""

    inputs: DeclaredInputs
    vocabulary: Vocabulary | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which tensor of a kind of model carries what; the names on the right are the model's."""

    fields: Mapping[str, str]  # field of SamplingParams -> the input that takes its value as it is
    told: Mapping[str, Needs] = field(default_factory=dict)  # -> those that `tell` fills
    tell: Callable[[GenerationRequest, Values, "Known"], None] | None = None
    # inputs of more than one dimension, as they are sent
    arrays: Callable[[GenerationRequest, DeclaredInputs], dict[str, TensorInput]] | None = None
    answers: Mapping[str, str] = field(default_factory=dict)  # field -> the output it needs as well
    flags: Needs = ()  # inputs that are set in every request
    leaves_prompt_out: str = ""  # the flag without which the prompt stands before the answer
    stream: str = "stream"
    log_probabilities: str = ""  # the output of numbers, one for each token
    derives: frozenset[str] = frozenset()  # whatever the model declares
    keeps_stop_texts: bool = True  # in the answer, so that they can be told
    with_vocabulary: frozenset[str] = frozenset()  # fields that need the model's tokenizer
    # members of extra_args -> their input, and the type of its value
    extra_args: Mapping[str, tuple[str, type]] = field(default_factory=dict)
    adds_special_tokens: bool = False  # the model puts BOS and the like before a text itself
