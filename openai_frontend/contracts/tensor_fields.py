"""Contracts of models that have one tensor for each field, as a `TensorMap` describes them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from openai_frontend.contracts import (
    DeclaredInputs,
    TensorInput,
    Vocabulary,
    check_supportable,
    declared_names,
    is_writable,
)
from openai_frontend.contracts.output_fields import OutputFields
from openai_frontend.errors import InvalidRequest, ModelUnavailable
from openai_frontend.generation import GenerationRequest, SamplingParams
from openai_frontend.media.modalities import ImageInput

_DEFAULTS = {each.name: each.default for each in fields(SamplingParams)}

# Values for required inputs that the request does not set
_NEUTRAL_VALUES: Mapping[str, Any] = {
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

_NOT_STREAMED = {"return_context_logits", "return_generation_logits"}

Values = dict[str, Sequence[Any]]  # our name of an input -> its elements
TensorNames = tuple[str, ...]  # our names of tensors

# Our names of the outputs that are decoded
_OUTPUTS = ("text_output", "finish_reason", "stop_reason", "num_input_tokens", "num_output_tokens")


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
    image_urls: str = ""  # the input that gets images, as data URLs; "": none
    image_mime_type: str = ""  # of these URLs; "": each image's own


class TensorFields:
    """The contract of one model, without `DerivedOutputs` around it."""

    def __init__(
        self,
        config: Mapping[str, Any],
        tensor_map: TensorMap,
        *,
        tensors: Mapping[str, str],
        decoupled: bool,
        vocabulary: Vocabulary | None,
    ) -> None:
        """`tensors`: our name -> the model's name.

        Raises ModelUnavailable if the model's tensors do not fit.
        """
        _check_named(tensors, tensor_map, config)
        self._map = tensor_map
        self._inputs = DeclaredInputs(config, tensors)
        self._outputs = OutputFields(
            config,
            tensors,
            logprobs=tensor_map.logprobs_output,
            accumulates="deltas" in tensor_map.derives,
        )
        self.decoder = self._outputs.decoder
        self._decoupled = decoupled
        self._vocabulary = vocabulary
        self._context = EncodingContext(self._inputs, vocabulary)
        self._flags = {
            name: self._inputs.true(name) for name in tensor_map.flags if name in self._inputs
        }
        self.extra_args: frozenset[str] | None = frozenset(
            name for name, (tensor, _) in tensor_map.extra_args.items() if tensor in self._inputs
        )
        self.derives = tensor_map.derives | self._outputs.derived()
        if tensor_map.exclude_prompt_flag and tensor_map.exclude_prompt_flag not in self._inputs:
            self.derives |= {"prompt"}
        self.max_images = self._inputs.length(tensor_map.image_urls)
        self._check_datatypes({"text_input", *tensor_map.fields.values(), *tensor_map.flags})
        self._required_values = self._required()
        self._needs_max_tokens = (
            self._inputs.name(tensor_map.fields.get("max_tokens", "")) in self._inputs.required()
        )
        self._carried = self._declared_fields()

    def supports(self, field: str) -> bool:
        """True if the model declares every tensor that the field needs."""
        if field in self._carried:
            return True
        check_supportable(field)
        return False

    def encode(self, request: GenerationRequest) -> dict[str, TensorInput]:
        """Prompt, flags and fields, each in its own tensor."""
        tensor_map, params = self._map, request.sampling_params
        values: Values = {**self._required_values, "text_input": [self._prompt(request)]}
        for each, name in tensor_map.fields.items():
            value = getattr(params, each)
            if value is not None and value != _DEFAULTS[each]:
                values[name] = value if isinstance(value, (list, tuple)) else [value]
        if self._needs_max_tokens and params.max_tokens is None:
            raise _unbounded()
        values.update(self._extra(params.extra_args or {}, stream=request.stream))
        if self._streams(request):
            values[tensor_map.stream] = [True]
        if request.images:
            values[tensor_map.image_urls] = [self._data_url(image) for image in request.images]
        if tensor_map.encode_custom is not None:
            tensor_map.encode_custom(request, values, self._context)
        inputs = {self._inputs.name(name): tensor for name, tensor in self._flags.items()}
        for name, elements in values.items():
            if name in self._inputs:
                inputs[self._inputs.name(name)] = self._tensor(name, elements)
        if tensor_map.encode_arrays is not None:
            inputs |= tensor_map.encode_arrays(request, self._inputs)
        return inputs

    def text_output(self, request: GenerationRequest) -> str | None:
        """None, because a response may hold more than text."""
        return None

    def _streams(self, request: GenerationRequest) -> bool:
        """Log probabilities come token by token, so they require a stream."""
        per_token = request.stream or request.sampling_params.logprobs is not None
        return per_token and self._decoupled

    def _prompt(self, request: GenerationRequest) -> str:
        if request.prompt is None:
            message = "This model takes prompts as text only."
            raise InvalidRequest(message, param="prompt")
        if self._vocabulary is None or not self._map.adds_special_tokens:
            return request.prompt
        return self._vocabulary.unprefixed(request.prompt)

    def _data_url(self, image: ImageInput) -> str:
        """Never a client's URL, which the model might fetch."""
        mime_type = self._map.image_mime_type or f"image/{image.format}"
        return f"data:{mime_type};base64,{image.base64}"

    def _tensor(self, name: str, elements: Sequence[Any]) -> TensorInput:
        try:
            return self._inputs.tensor(name, elements)
        except OverflowError:
            field = {name: each for each, name in self._map.fields.items()}.get(name, name)
            message = f"Invalid '{field}': {elements[0]} is out of range for this model's input."
            raise InvalidRequest(message, param=field) from None

    def _extra(self, arguments: Mapping[str, Any], *, stream: bool) -> Values:
        """Values for inputs that the client names itself in `vllm_xargs`."""
        values: Values = {}
        for name, value in arguments.items():
            param = f"vllm_xargs.{name}"
            if self.extra_args is None or name not in self.extra_args:
                message = f"Unsupported parameter: '{param}' is not supported with this model."
                raise InvalidRequest(message, param=param, code="unsupported_parameter")
            tensor, kind = self._map.extra_args[name]
            values[tensor] = [_of_type(value, kind, param)]
            if stream and name in _NOT_STREAMED and value:
                message = f"Unsupported parameter: '{param}' cannot be used with 'stream'."
                raise InvalidRequest(message, param=param, code="unsupported_parameter")
        return values

    def _declared_fields(self) -> frozenset[str]:
        """The fields for which the model declares every tensor."""
        tensor_map = self._map
        needs = {
            **{each: (name,) for each, name in tensor_map.fields.items()},
            **tensor_map.custom_fields,
            "images": (tensor_map.image_urls,),
        }
        carried = {
            each
            for each, names in needs.items()
            if all(name in self._inputs for name in names)
            and tensor_map.required_outputs.get(each, "text_output") in self._outputs
        }
        if self._vocabulary is None:
            carried -= tensor_map.needs_vocabulary
        if "stop" in tensor_map.derives:
            carried |= {"stop", "include_stop_str_in_output"}
        if not tensor_map.can_include_stop:
            carried -= {"include_stop_str_in_output"}
        carried |= {"stream"} if self._decoupled else set()
        carried |= {"extra_args"} if self.extra_args else set()
        carried |= {"running_counts"} if "num_output_tokens" in self._outputs else set()
        return frozenset(carried | {"prompt"})

    def _required(self) -> Values:
        """Neutral values for required inputs that a request may not set."""
        fields = {self._inputs.name(name): each for each, name in self._map.fields.items()}
        filled = {self._inputs.name(name) for name in ("text_input", *self._flags)}
        values: Values = {}
        for name in sorted(self._inputs.required() - filled):
            each = fields.get(name, "")
            if name == self._inputs.name(self._map.stream):
                values[self._map.stream] = [False]
            elif each in _NEUTRAL_VALUES:
                values[self._map.fields[each]] = [_NEUTRAL_VALUES[each]]
            elif each != "max_tokens":
                raise ModelUnavailable(
                    f"its input '{name}' is required, but no request field fills it"
                )
        return values

    def _check_datatypes(self, names: set[str]) -> None:
        for name in sorted(names):
            if name in self._inputs and not is_writable(self._inputs.datatype(name)):
                raise ModelUnavailable(
                    f"its input '{self._inputs.name(name)}' has the unsupported type "
                    f"{self._inputs.datatype(name)}"
                )


def _check_named(
    tensors: Mapping[str, str], tensor_map: TensorMap, config: Mapping[str, Any]
) -> None:
    """Raises ModelUnavailable if `tensors` has an unknown name on either side."""
    inputs = {"text_input", tensor_map.stream, *tensor_map.fields.values(), *tensor_map.flags}
    inputs |= {tensor_map.image_urls} - {""}
    for names in tensor_map.custom_fields.values():
        inputs.update(names)
    sides = {**dict.fromkeys(inputs, "input"), **dict.fromkeys(_OUTPUTS, "output")}
    for ours, name in tensors.items():
        if ours not in sides:
            raise ModelUnavailable(
                f"`tensors` has an unknown name '{ours}'; use {', '.join(sorted(sides))}"
            )
        if name not in declared_names(config, sides[ours]):
            raise ModelUnavailable(
                f"`tensors` names an {sides[ours]} '{name}' that it does not have"
            )


def _unbounded() -> InvalidRequest:
    message = (
        "Missing required parameter: 'max_tokens'. This model needs it, because its context length "
        "is unknown."
    )
    return InvalidRequest(message, param="max_tokens", code="missing_required_parameter")


def _of_type(value: Any, kind: type, param: str) -> Any:
    """Checks a value's type; accepts integers as decimals."""
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
