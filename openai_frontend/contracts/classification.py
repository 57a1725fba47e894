"""The tensors of classifiers that Triton runs: texts in, one vector of scores for each out."""

from collections.abc import Mapping, Sequence
from typing import Any

from openai_frontend.contracts import DeclaredInputs, Outputs, TensorInput
from openai_frontend.errors import InvalidRequest, MalformedOutput, ModelUnavailable
from openai_frontend.pooling import EmbeddingResult, EmbedRequest

_NAMES = {"text_input", "scores"}
_FLOAT_BYTES = 4
_UNLIMITED = 2048  # texts in one request to a model that sets no limit: the most of a client's


class ClassificationContract:
    """A request is a row of the text input, an answer a row of the scores.

    Raises ModelUnavailable if the model's tensors do not fit, or do not match its labels.
    """

    def __init__(
        self, config: Mapping[str, Any], tensors: Mapping[str, str], labels: Sequence[str] | None
    ) -> None:
        """`tensors`: our name -> the model's; "text_input" or "scores"."""
        for ours in sorted(tensors.keys() - _NAMES):
            raise ModelUnavailable(f"`tensors` has an unknown name '{ours}' for a classifier")
        self._inputs = DeclaredInputs(config)
        self._text = _only(text_inputs(config), tensors.get("text_input"), "text_input")
        self._output = _only(score_outputs(config), tensors.get("scores"), "scores")
        for name in sorted(self._inputs.required() - {self._text}):
            raise ModelUnavailable(f"its input '{name}' is required, but no request field fills it")
        self._batch_dimension = int(config.get("max_batch_size", 0))
        self._batch_limit = self._batch_dimension or (_UNLIMITED if self._has_rows(config) else 1)
        _check_labels(_dims(config, "output", self._output)[-1], self._output, labels)

    def batch_limit(self, *, tokenized: bool) -> int:
        """How many texts one request may have: as many as the model takes."""
        return self._batch_limit

    def encode(self, requests: Sequence[EmbedRequest]) -> dict[str, TensorInput]:
        """The texts in one tensor. Raises InvalidRequest for token ids without their text."""
        datatype, _, data = self._inputs.tensor(self._text, list(map(_text, requests)))
        shape = (len(requests), 1) if self._batch_dimension else (len(requests),)
        return {self._text: (datatype, shape, data)}

    def decode(self, outputs: Outputs, count: int) -> list[EmbeddingResult]:
        """Each row of the scores, in the response's own memory. The gateway counts the tokens."""
        tensor = outputs.tensor(self._output)
        if tensor is None:
            raise MalformedOutput(f"The model returned no output '{self._output}'.")
        view, shape = memoryview(tensor), tuple(tensor.shape)
        rows = shape[0] if len(shape) == 2 else 1
        if len(shape) not in (1, 2) or rows != count:
            size = " x ".join(map(str, shape))
            raise MalformedOutput(
                f"The model returned {size} scores for {count} inputs instead of one row for each."
            )
        width = shape[-1]
        if width == 0:
            raise MalformedOutput("The model returned no scores.")
        if view.nbytes != rows * width * _FLOAT_BYTES:
            raise MalformedOutput("The model returned scores of another type than FP32.")
        numbers: Any = view.cast("B").cast("f")
        return [EmbeddingResult(numbers[at * width : (at + 1) * width], 0) for at in range(count)]

    def _has_rows(self, config: Mapping[str, Any]) -> bool:
        """Whether a model without a batch dimension reads several texts and returns a matrix."""
        texts, scores = (
            _dims(config, side, name)
            for side, name in (("input", self._text), ("output", self._output))
        )
        return texts == [-1] and len(scores) == 2 and scores[0] == -1


def is_classifier(config: Mapping[str, Any]) -> bool:
    """Whether the tensors of a model are one text and one vector of scores."""
    has_text = any(each["data_type"] == "TYPE_STRING" for each in config.get("output", ()))
    return not has_text and len(text_inputs(config)) == 1 and len(score_outputs(config)) == 1


def text_inputs(config: Mapping[str, Any]) -> list[str]:
    """The STRING inputs of one text, or of any number: the required ones, if there are any."""
    texts = [
        each
        for each in config.get("input", ())
        if each["data_type"] == "TYPE_STRING" and _dims_of(each) in ([1], [-1])
    ]
    required = [each for each in texts if not each.get("optional")]
    return [each["name"] for each in required or texts]


def score_outputs(config: Mapping[str, Any]) -> list[str]:
    """The FP32 outputs that can be scores: those with a file of labels, or else all vectors."""
    ranks = (1,) if config.get("max_batch_size", 0) > 0 else (1, 2)
    vectors = [
        each
        for each in config.get("output", ())
        if each["data_type"] == "TYPE_FP32" and len(_dims_of(each)) in ranks
    ]
    labelled = [each for each in vectors if each.get("label_filename")]
    return [each["name"] for each in labelled or vectors]


def _dims_of(tensor: Mapping[str, Any]) -> list[int]:
    return [int(each) for each in tensor.get("dims", ())]


def _dims(config: Mapping[str, Any], side: str, name: str) -> list[int]:
    return next(_dims_of(each) for each in config[side] if each["name"] == name)


def _only(candidates: Sequence[str], wanted: str | None, ours: str) -> str:
    """The named tensor, or else the only candidate."""
    found = [each for each in candidates if wanted in (None, each)]
    if len(found) != 1:
        kind = "inputs can be the text" if ours == "text_input" else "outputs can be the scores"
        raise ModelUnavailable(f"{len(found)} of its {kind}; name one as '{ours}' in `tensors`")
    return found[0]


def _check_labels(classes: int, output: str, labels: Sequence[str] | None) -> None:
    if not labels:
        raise ModelUnavailable(
            f"it has no labels: set `label_filename` of its output '{output}', or `labels` in "
            "openai_frontend.yaml"
        )
    if classes not in (-1, len(labels)):
        raise ModelUnavailable(
            f"it has {len(labels)} labels for the {classes} scores of its output '{output}'"
        )


def _text(request: EmbedRequest) -> str:
    if request.prompt is None:
        raise InvalidRequest(
            "This model takes inputs as text only, neither token ids nor a truncated input.",
            param=request.param or "input",
        )
    if request.use_activation is False:
        raise InvalidRequest(
            "Unsupported value: 'use_activation' = false is not supported by this model.",
            param="use_activation",
            code="unsupported_value",
        )
    return request.prompt
