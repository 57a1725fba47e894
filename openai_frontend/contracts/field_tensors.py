"""The contracts of models that have a tensor for each field: which one is whose is a table.

What such a model does not report is left to `derived.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, NamedTuple

from openai_frontend.contracts.contract import (
    DeclaredInputs,
    Outputs,
    TensorInput,
    declared_names,
    is_writable,
)
from openai_frontend.contracts.derived import UNKNOWN_TOKEN
from openai_frontend.contracts.vocabulary import Vocabulary
from openai_frontend.errors import InferenceFailed, InvalidRequest, ModelUnavailable
from openai_frontend.generation import (
    CompletionDelta,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    SequenceDelta,
    TokenCounts,
)

Values = dict[str, Sequence[Any]]  # our name of an input -> its elements
Needs = tuple[str, ...]  # our names of tensors

# Our names of what a model may answer
OUTPUTS = ("text_output", "finish_reason", "stop_reason", "num_input_tokens", "num_output_tokens")

_DEFAULTS = {each.name: each.default for each in fields(SamplingParams)}

# What an input that a model insists on is given where the request says nothing of it
_NOTHING_SAID: Mapping[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "seed": 0,
    "min_tokens": 0,
    "ignore_eos": False,
    "stop": "",
    "bad_words": "",
}

# What TensorRT-LLM's models tell of how an answer was made, of all names that its releases have
_METRICS = (
    "kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks",
    "kv_cache_reused_block", "kv_cache_missed_block", "kv_cache_hit_rate", "arrival_time_ns",
    "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns", "acceptance_rate",
    "total_accepted_draft_tokens", "total_draft_tokens", "cum_log_probs", "cumulative_logprob",
)  # fmt: skip

# Member of extra_args -> the outputs that it asks for
_MORE: Mapping[str, Sequence[str]] = {
    "return_perf_metrics": _METRICS,
    "return_context_logits": ("context_logits",),
    "return_generation_logits": ("generation_logits",),
}

_OF_WHOLE_ANSWERS = {"return_context_logits", "return_generation_logits"}

_FINISH_REASONS: Mapping[str, FinishReason | None] = {
    "stop": "stop",
    "length": "length",
    "eos": "stop",
    "none": None,
    "": None,
}


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
    stream: str = "stream"
    log_probabilities: str = ""  # the output of numbers, one for each token
    derives: frozenset[str] = frozenset()  # whatever the model declares
    keeps_stop_texts: bool = True  # in the answer, so that they can be told
    with_vocabulary: frozenset[str] = frozenset()  # fields that need the model's tokenizer
    # members of extra_args -> their input, and the type of its value
    extra_args: Mapping[str, tuple[str, type]] = field(default_factory=dict)
    adds_special_tokens: bool = False  # the model puts BOS and the like before a text itself


class FieldTensors:
    """Encodes for, and reads, one model; not yet completed by `Derived`."""

    def __init__(
        self,
        config: Mapping[str, Any],
        layout: Layout,
        *,
        tensors: Mapping[str, str],
        decoupled: bool,
        vocabulary: Vocabulary | None,
    ) -> None:
        """`tensors`: our name -> the model's. Raises ModelUnavailable for a model that cannot be
        asked so.
        """
        _check_named(tensors, layout, config)
        self._layout = layout
        self._inputs = DeclaredInputs(config, tensors)
        self._outputs = _Outputs(declared_names(config, "output"), tensors)
        self._decoupled = decoupled
        self._vocabulary = vocabulary
        self._known = Known(self._inputs, vocabulary)
        self._flags = {
            name: self._inputs.true(name) for name in layout.flags if name in self._inputs
        }
        self.extra_args: frozenset[str] | None = frozenset(
            name for name, (tensor, _) in layout.extra_args.items() if tensor in self._inputs
        )
        self.derives = layout.derives | self._underived()
        self._check_datatypes({"text_input", *layout.fields.values(), *layout.flags})
        self._unsaid = self._required()
        self._needs_max_tokens = (
            self._inputs.name(layout.fields.get("max_tokens", "")) in self._inputs.required()
        )
        self._carried = self._declared_fields()

    def supports(self, field: str) -> bool:
        """True where the model declares every tensor that the field needs."""
        return field in self._carried

    def encode(self, request: GenerationRequest) -> dict[str, TensorInput]:
        """Prompt, flags, and what the request says, each in its own tensor."""
        layout, params = self._layout, request.sampling_params
        values: Values = {**self._unsaid, "text_input": [self._prompt(request)]}
        for each, name in layout.fields.items():
            value = getattr(params, each)
            if value is not None and value != _DEFAULTS[each]:
                values[name] = value if isinstance(value, (list, tuple)) else [value]
        if self._needs_max_tokens and params.max_tokens is None:
            raise _unbounded()
        values.update(self._extra(params.extra_args or {}, stream=request.stream))
        if self._streams(request):
            values[layout.stream] = [True]
        if layout.tell is not None:
            layout.tell(request, values, self._known)
        inputs = {self._inputs.name(name): tensor for name, tensor in self._flags.items()}
        for name, elements in values.items():
            if name in self._inputs:
                inputs[self._inputs.name(name)] = self._tensor(name, elements)
        return inputs if layout.arrays is None else inputs | layout.arrays(request, self._inputs)

    def decoder(self, request: GenerationRequest) -> Callable[[Outputs], CompletionDelta]:
        """What the model itself says in each response."""
        if _wants_logprobs(request.sampling_params):
            return self._with_logprobs
        if request.sequences > 1:
            return partial(self._one_sequence, at=request.sequence)
        if asked := set(request.sampling_params.extra_args or ()) & _MORE.keys():
            return partial(self._with_more, names=[name for each in asked for name in _MORE[each]])
        return self.decode

    def text_output(self, request: GenerationRequest) -> str | None:
        """None: nothing promises that a response holds its text alone."""
        return None

    def decode(self, outputs: Outputs) -> CompletionDelta:
        """The text and the counts of one response, and why it is the last."""
        names = self._outputs
        delta = CompletionDelta(_text(outputs.item(names["text_output"])) or "")
        reason = _text(outputs.item(names["finish_reason"]))
        if reason is not None:
            delta.finish_reason = _finish_reason(reason)
            delta.stop_reason = self._stop_reason(outputs)
        tokens = outputs.item(names["num_output_tokens"])
        if tokens is not None:
            prompt = outputs.item(names["num_input_tokens"]) or 0
            delta.counts = TokenCounts(int(prompt), int(tokens))
        return delta

    def _with_logprobs(self, outputs: Outputs) -> CompletionDelta:
        """As `decode`, with a number for each token; which token it is, nobody says here."""
        delta = self.decode(outputs)
        numbers = outputs.tolist(self._outputs[self._layout.log_probabilities])
        if numbers:
            if delta.counts is not None:  # some builds tell those of earlier responses again
                numbers = numbers[-delta.counts.completion_tokens :]
            delta.logprobs = [{UNKNOWN_TOKEN: {"logprob": number}} for number in numbers]
        return delta

    def _one_sequence(self, outputs: Outputs, *, at: int) -> CompletionDelta:
        """As `decode`, of one answer of several; how long each of them is, nobody says."""
        texts = outputs.tolist(self._outputs["text_output"]) or []
        text = _text(texts[at]) if at < len(texts) else None
        return SequenceDelta(text or "", sequence=at)

    def _with_more(self, outputs: Outputs, *, names: Sequence[str]) -> CompletionDelta:
        """As `decode`, with outputs that the request asked for by name."""
        delta = self.decode(outputs)
        given = {name: outputs.tensor(name) for name in names if name in self._outputs}
        told = {name: tensor for name, tensor in given.items() if tensor is not None}
        if told:
            delta.counts = replace(
                delta.counts or TokenCounts(),
                metrics={name: _number(outputs.item(name)) for name in told if name in _METRICS},
                logits={name: told[name] for name in told if name not in _METRICS},
            )
        return delta

    def _stop_reason(self, outputs: Outputs) -> str | int | None:
        told = _text(outputs.item(self._outputs["stop_reason"]))
        if told in (None, "", "None"):
            return None
        return int(told) if told is not None and told.isdecimal() else told

    def _streams(self, request: GenerationRequest) -> bool:
        """Log probabilities are told token by token, so they are asked for as a stream."""
        wanted = request.stream or _wants_logprobs(request.sampling_params)
        return wanted and self._decoupled

    def _prompt(self, request: GenerationRequest) -> str:
        if request.prompt is None:
            message = "This model takes prompts as text only."
            raise InvalidRequest(message, param="prompt")
        if self._vocabulary is None or not self._layout.adds_special_tokens:
            return request.prompt
        return self._vocabulary.unprefixed(request.prompt)

    def _tensor(self, name: str, elements: Sequence[Any]) -> TensorInput:
        try:
            return self._inputs.tensor(name, elements)
        except OverflowError:
            field = {name: each for each, name in self._layout.fields.items()}.get(name, name)
            message = f"Invalid '{field}': {elements[0]} is more than the model can be told."
            raise InvalidRequest(message, param=field) from None

    def _extra(self, given: Mapping[str, Any], *, stream: bool) -> Values:
        """What goes to the model by the name of its input."""
        values: Values = {}
        for name, value in given.items():
            param = f"vllm_xargs.{name}"
            if self.extra_args is None or name not in self.extra_args:
                message = f"Unsupported parameter: '{param}' is not supported with this model."
                raise InvalidRequest(message, param=param, code="unsupported_parameter")
            tensor, kind = self._layout.extra_args[name]
            values[tensor] = [_of_type(value, kind, param)]
            if stream and name in _OF_WHOLE_ANSWERS and value:
                message = f"Unsupported parameter: '{param}' cannot be used with 'stream'."
                raise InvalidRequest(message, param=param, code="unsupported_parameter")
        return values

    def _declared_fields(self) -> frozenset[str]:
        """The fields for which the model has every tensor that they need."""
        layout = self._layout
        needs = {each: (name,) for each, name in layout.fields.items()} | dict(layout.told)
        carried = {
            each
            for each, names in needs.items()
            if all(name in self._inputs for name in names)
            and layout.answers.get(each, "text_output") in self._outputs
        }
        if self._vocabulary is None:
            carried -= layout.with_vocabulary
        if "stop" in layout.derives:
            carried |= {"stop", "include_stop_str_in_output"}
        if not layout.keeps_stop_texts:
            carried -= {"include_stop_str_in_output"}
        carried |= {"stream"} if self._decoupled else set()
        carried |= {"extra_args"} if self.extra_args else set()
        carried |= {"running_counts"} if "num_output_tokens" in self._outputs else set()
        return frozenset(carried | {"prompt"})

    def _underived(self) -> frozenset[str]:
        """What the model has no output for."""
        lacking = {
            "finish_reason": "finish_reason",
            "num_input_tokens": "prompt_tokens",
            "num_output_tokens": "completion_tokens",
        }
        return frozenset(
            derived for output, derived in lacking.items() if output not in self._outputs
        )

    def _required(self) -> Values:
        """Values for the inputs that the model insists on and a request may say nothing of."""
        fields = {self._inputs.name(name): each for each, name in self._layout.fields.items()}
        filled = {self._inputs.name(name) for name in ("text_input", *self._flags)}
        values: Values = {}
        for name in sorted(self._inputs.required() - filled):
            each = fields.get(name, "")
            if name == self._inputs.name(self._layout.stream):
                values[self._layout.stream] = [False]
            elif each in _NOTHING_SAID:
                values[self._layout.fields[each]] = [_NOTHING_SAID[each]]
            elif each != "max_tokens":
                raise ModelUnavailable(
                    f"its input '{name}' is required, and nothing of a request fills it"
                )
        return values

    def _check_datatypes(self, names: set[str]) -> None:
        for name in sorted(names):
            if name in self._inputs and not is_writable(self._inputs.datatype(name)):
                raise ModelUnavailable(
                    f"its input '{self._inputs.name(name)}' is of the type "
                    f"{self._inputs.datatype(name)}, in which no request can be written"
                )


def _check_named(tensors: Mapping[str, str], layout: Layout, config: Mapping[str, Any]) -> None:
    """Raises for a name that an operator gives to no tensor of ours, or of no tensor there is."""
    told = {name for names in layout.told.values() for name in names}
    inputs = {"text_input", layout.stream, *layout.fields.values(), *layout.flags, *told}
    sides = {**dict.fromkeys(inputs, "input"), **dict.fromkeys(OUTPUTS, "output")}
    for ours, name in tensors.items():
        if ours not in sides:
            raise ModelUnavailable(
                f"`tensors` names a '{ours}', but there are only {', '.join(sorted(sides))}"
            )
        if name not in declared_names(config, sides[ours]):
            raise ModelUnavailable(f"it has no {sides[ours]} '{name}', which `tensors` names")


class _Outputs:
    """Our names of the outputs that a model declares, as the model calls them."""

    def __init__(self, declared: frozenset[str], tensors: Mapping[str, str]) -> None:
        self._declared = declared
        self._tensors = tensors

    def __contains__(self, ours: str) -> bool:
        return self[ours] in self._declared

    def __getitem__(self, ours: str) -> str:
        return self._tensors.get(ours, ours)


def _unbounded() -> InvalidRequest:
    message = (
        "Missing required parameter: 'max_tokens'. This model must be told how long its answer may "
        "be, and nothing says how long its context is."
    )
    return InvalidRequest(message, param="max_tokens", code="missing_required_parameter")


def _wants_logprobs(params: SamplingParams) -> bool:
    return params.logprobs is not None


def _text(element: Any) -> str | None:
    if element is None:
        return None
    return str(element, "utf-8", "replace") if isinstance(element, bytes) else str(element)


def _number(element: Any) -> int | float:
    """The LLM-API model writes its numbers as text."""
    told = _text(element) or "0" if isinstance(element, (bytes, str)) else element
    return float(told) if isinstance(told, str) else told


def _finish_reason(told: str) -> FinishReason | None:
    try:
        return _FINISH_REASONS[told.lower()]
    except KeyError:
        raise InferenceFailed(f"The model ended the request with '{told}'.") from None


def _of_type(value: Any, kind: type, param: str) -> Any:
    """A value of a request as one of its input; whole numbers pass for decimals."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        message = f"Invalid type for '{param}': expected {_KINDS[kind]}."
        raise InvalidRequest(message, param=param, code="invalid_type")
    return value


_KINDS: Mapping[type, str] = {
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
    str: "a string",
}
