"""The tensors of NVIDIA's vLLM backend and of our in-process backend, which adds token ids."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import orjson

from openai_frontend.contracts import (
    DeclaredInputs,
    DecodeText,
    Outputs,
    TensorInput,
    Vocabulary,
    check_supportable,
    declared_names,
    media_tensors,
    text_decoder,
)
from openai_frontend.contracts.sampling_parameters import SamplingParameters
from openai_frontend.errors import InferenceFailed, InvalidRequest
from openai_frontend.generation import (
    CompletionDelta,
    FinishReason,
    GenerationRequest,
    KVTransfer,
    SamplingParams,
    TokenCounts,
    TokenLogprobs,
)
from openai_frontend.media.modalities import AudioInput, salted_digest

# The model's finish reasons -> ours. NVIDIA's backend sends "None" until the end.
_FINISH_REASONS: Mapping[bytes, FinishReason | None] = {
    b"stop": "stop",
    b"length": "length",
    b"abort": "abort",
    b"repetition": "stop",  # vLLM's repetition detection
    b"None": None,
}

# Inputs that request outputs which our in-process backend always sends with its last response
_REPORT_FLAGS = ("return_finish_reason", "return_num_input_tokens", "return_num_output_tokens")

# Field -> the input that it needs, and the output that returns it, if any
_NEEDS = {
    "prompt": ("text_input", None),
    "prompt_token_ids": ("prompt_token_ids", None),
    "stream": ("stream", None),
    "return_token_ids": ("return_token_ids", "token_ids"),
    "count_tokens": ("count_tokens", "token_ids"),
    "logprobs": ("return_logprobs", "logprobs"),
    "logprob_token_ids": ("return_logprobs", "logprobs"),
    "prompt_logprobs": ("sampling_parameters", "prompt_logprobs"),
    "priority": ("priority", None),
    "cache_salt": ("cache_salt", None),
    "images": ("image", None),
    "image_detail": ("media_info", None),
    "audio": ("audio", None),
    "audio_files": ("audio_file", None),
    "stream_interval": ("stream_interval", None),
    "top_logprobs": ("return_logprobs", "logprobs"),
    "logprob_ids": ("return_logprobs", "logprobs"),
    "running_counts": ("return_num_output_tokens", "num_output_tokens"),
    "kv_transfer": ("kv_transfer", "kv_transfer_params"),
}

_MEDIA = {"images", "audio_files", "audio"}

# NVIDIA's backend fails on these: it keeps the keys of logit_bias as text, and predates the
# others.
_INPROCESS_ONLY = {
    "logit_bias",
    "logprob_token_ids",
    "thinking_token_budget",
    "repetition_detection",
}

# Only for other models: vLLM finds an adapter by its name and has no beam search here.
_OTHER_MODELS_ONLY = {"adapter_weights", "adapter_path", "beam_width", "length_penalty"}

# Sampling parameters, adapter and flags: all that inputs besides the prompt depend on
_PreparedKey = tuple[int, str | None, bool, bool, bool, bool]

# Sampling parameters as tensors: at most 4 MB for each model
_MAX_KEPT, _MAX_KEPT_CHARACTERS = 256, 16 * 1024

_SAMPLE_BYTES = 4  # of a float32

# Represents minus infinity, which JSON lacks
_LOWEST_LOGPROB = -9999.0


class VLLMContract:
    """Reads a model's config once; sends only the tensors that it declares."""

    extra_args: frozenset[str] | None = None  # engine plug-ins take any

    def __init__(
        self,
        config: Mapping[str, Any],
        vocabulary: Vocabulary | None = None,
        *,
        logprob_arrays: bool = False,
        takes: Collection[str] = (),
    ) -> None:
        """`logprob_arrays`: take log probabilities as arrays, because the texts of the tokens are
        known. `takes`: which of "images", "audio_files" and "audio" the model takes, if it has the
        input.
        """
        self._media = frozenset(takes)
        self._logprob_arrays = logprob_arrays
        self._inputs = DeclaredInputs(config)
        self.max_images = self._inputs.length("image") if "images" in takes else 0
        self._outputs = declared_names(config, "output")
        self._vocabulary = vocabulary
        self.derives = _unreported(self._outputs, self._inputs)
        self._sampling_parameters = SamplingParameters()
        # Kept with the parameters, whose id is part of the key
        self._prepared: dict[_PreparedKey, tuple[SamplingParams, Mapping[str, TensorInput]]] = {}
        self._flags = _constant_flags(config, self._inputs)
        self._inprocess = config.get("backend") == "inprocess"
        self._takes = declared_names(config, "input")
        self._supported: dict[str, bool] = {}  # what `supports` has returned
        self._ends_silently = "finish_reason" not in self._outputs

    def supports(self, field: str) -> bool:
        """True if the model declares the tensors of this request field and its backend reads it."""
        known = self._supported.get(field)
        if known is None:
            known = self._supported[field] = self._supports(field)
        return known

    def _supports(self, field: str) -> bool:
        check_supportable(field)
        if field in _OTHER_MODELS_ONLY or (field in _INPROCESS_ONLY and not self._inprocess):
            return False
        if field in _MEDIA and field not in self._media:
            return False
        if field == "images" and self.max_images == 0:
            return False
        needed_input, needed_output = _NEEDS.get(field, ("sampling_parameters", None))
        return needed_input in self._inputs and (
            needed_output is None or needed_output in self._outputs
        )

    def encode(self, request: GenerationRequest) -> dict[str, TensorInput]:
        """Prompt, sampling parameters as JSON text, and flags for requested outputs."""
        takes = self._takes
        inputs = {**self._prepared_inputs(request), **self._prompt(request)}
        if request.priority and "priority" in takes:
            inputs["priority"] = self._priority(request.priority)
        if request.cache_salt is not None and "cache_salt" in takes:
            inputs["cache_salt"] = self._inputs.tensor("cache_salt", [request.cache_salt])
        if request.stream_interval > 1 and "stream_interval" in takes:
            inputs["stream_interval"] = self._inputs.tensor(
                "stream_interval", [request.stream_interval]
            )
        if request.kv_transfer is not None and "kv_transfer" in takes:
            text = _transfer_json(request.kv_transfer)
            inputs["kv_transfer"] = self._inputs.tensor("kv_transfer", [text])
        if request.images or request.audio_files:
            inputs |= media_tensors(
                self._inputs, request.images, request.audio_files, request.cache_salt
            )
        if request.audio is not None:
            inputs |= self._audio_tensors(request.audio, request.cache_salt)
        return inputs

    def _audio_tensors(self, audio: AudioInput, cache_salt: str | None) -> dict[str, TensorInput]:
        samples = audio.samples.cast("B")
        tensors = {"audio": self._inputs.buffer("audio", samples, len(samples) // _SAMPLE_BYTES)}
        if "media_info" in self._inputs:
            info = [{"kind": "audio", "digest": salted_digest(audio, cache_salt)}]
            tensors["media_info"] = self._inputs.tensor("media_info", [orjson.dumps(info).decode()])
        return tensors

    def _prepared_inputs(self, request: GenerationRequest) -> Mapping[str, TensorInput]:
        """Sampling parameters and flags. Requests that differ only in their prompt share them."""
        params, adapter = request.sampling_params, request.adapter
        key = (
            id(params),
            None if adapter is None else adapter.name,
            request.stream,
            request.return_token_ids,
            request.count_tokens,
            request.count_prompt,
        )
        known = self._prepared.get(key)
        if known is not None:
            return known[1]
        inputs, logprobs = dict(self._flags), _requests_logprobs(params)
        for name, enabled in (
            ("stream", request.stream),
            ("return_token_ids", request.return_token_ids),
            ("count_tokens", request.count_tokens),
            ("return_num_input_tokens", request.count_prompt),
            ("return_logprobs", logprobs),
            ("logprob_arrays", logprobs and self._logprob_arrays),
        ):
            if enabled and name in self._takes:
                inputs[name] = self._inputs.true(name)
        text = ""
        if "sampling_parameters" in self._takes:
            text = self._sampling_parameters.encode(params, lora_name=key[1])
            inputs["sampling_parameters"] = self._inputs.tensor("sampling_parameters", [text])
        if len(text) <= _MAX_KEPT_CHARACTERS:
            if len(self._prepared) >= _MAX_KEPT:
                self._prepared.clear()
            self._prepared[key] = params, inputs
        return inputs

    def decoder(self, request: GenerationRequest) -> Callable[[Outputs], CompletionDelta]:
        """A function that turns responses into deltas. It runs once per token."""
        decode = self._plain_decoder(request)
        if not self._inprocess:  # only engines in this process always send whole characters
            decode = partial(_decode_split, decode, text_decoder())
        elif request.count_prompt:
            decode = _FirstCounts(decode).decode
        return decode if request.kv_transfer is None else partial(_decode_transfer, decode)

    def _plain_decoder(self, request: GenerationRequest) -> Callable[[Outputs], CompletionDelta]:
        params = request.sampling_params
        if _requests_logprobs(params):
            return self._decode_arrays if self._logprob_arrays else self.decode
        if self.text_output(request) is None:
            return self.decode
        return self._decode_counted if request.count_tokens else self._decode_text

    def text_output(self, request: GenerationRequest) -> str | None:
        """`text_output` if responses before the last hold only text, or text with arrays of the
        likeliest tokens; else None.
        """
        params = request.sampling_params
        extras = (
            request.return_token_ids
            or (params.logprobs is not None and not self._logprob_arrays)
            or bool(params.logprob_token_ids)
            or params.prompt_logprobs is not None
        )
        return "text_output" if self._inprocess and not extras else None

    def _decode_text(self, outputs: Outputs) -> CompletionDelta:
        """Decodes a response that holds only text, unless it is the last one.

        1.0 us instead of 1.4 us: looking up an absent output costs 0.13 us.
        """
        if outputs.final:
            return self.decode(outputs)
        text = outputs.item("text_output")
        return CompletionDelta("" if text is None else str(text, "utf-8", "replace"))

    def _decode_counted(self, outputs: Outputs) -> CompletionDelta:
        """Decodes a response that holds only text if it is of one token, or was relayed."""
        if outputs.final:
            return self.decode(outputs)
        text, ids = outputs.item("text_output"), outputs.tolist("token_ids")
        relayed = outputs.relayed
        delta = CompletionDelta("" if text is None else str(text, "utf-8", "replace"))
        if ids is not None:
            delta.token_ids = ids
        else:
            delta.tokens = relayed or 1
        delta.relayed = relayed > 0
        return delta

    def _decode_arrays(self, outputs: Outputs) -> CompletionDelta:
        delta = self.decode(outputs)
        if delta.logprobs is None:  # an engine may know only the other form
            delta.logprobs = _logprob_arrays(outputs)
        return delta

    def decode(self, outputs: Outputs) -> CompletionDelta:
        """One delta per response."""
        text = outputs.item("text_output")
        delta = CompletionDelta("" if text is None else str(text, "utf-8", "replace"))
        token_ids = outputs.tolist("token_ids")
        if token_ids is not None:
            delta.token_ids = token_ids
        logprobs = outputs.item("logprobs")
        if logprobs is not None:
            delta.logprobs = _logprobs(logprobs)
        prompt_logprobs = outputs.item("prompt_logprobs")
        if prompt_logprobs is not None:
            delta.prompt_logprobs = _logprobs(prompt_logprobs)
        finish_reason = outputs.item("finish_reason")
        if finish_reason is not None:
            delta.finish_reason = _finish_reason(finish_reason)
            delta.stop_reason = _stop_reason(outputs)
        # backends that send a finish reason with every response send counts as well
        if finish_reason is not None or self._ends_silently:
            delta.counts = _counts(outputs)
        return delta

    def _prompt(self, request: GenerationRequest) -> dict[str, TensorInput]:
        if request.prompt_token_ids is not None and "prompt_token_ids" in self._takes:
            return {"prompt_token_ids": self._token_ids(request.prompt_token_ids)}
        if request.prompt is not None and "text_input" in self._inputs:
            return {"text_input": self._inputs.tensor("text_input", [self._text(request.prompt)])}
        form = "text" if "text_input" in self._inputs else "token ids"
        raise InvalidRequest(f"This model takes prompts as {form} only.", param="prompt")

    def _text(self, prompt: str) -> str:
        """vLLM adds BOS itself, even if a chat template has written one."""
        return prompt if self._vocabulary is None else self._vocabulary.unprefixed(prompt)

    def _token_ids(self, token_ids: Sequence[int]) -> TensorInput:
        try:
            return self._inputs.tensor("prompt_token_ids", token_ids)
        except OverflowError:
            message = "The prompt has token ids out of range for the model."
            raise InvalidRequest(message, param="prompt") from None

    def _priority(self, priority: int) -> TensorInput:
        try:
            return self._inputs.tensor("priority", [priority])
        except OverflowError:
            message = f"Invalid 'priority': {priority} is out of range for the model."
            raise InvalidRequest(message, param="priority") from None


def _unreported(outputs: frozenset[str], inputs: DeclaredInputs) -> frozenset[str]:
    """Values that older releases of the backend do not report, because they lack the output."""
    derived = {
        "finish_reason": "finish_reason",
        "num_input_tokens": "prompt_tokens",
        "num_output_tokens": "completion_tokens",
    }
    lacking = {name for output, name in derived.items() if output not in outputs}
    return frozenset(lacking | (set() if "exclude_input_in_output" in inputs else {"prompt"}))


def _constant_flags(config: Mapping[str, Any], inputs: DeclaredInputs) -> dict[str, TensorInput]:
    """The flags of every request to this model."""
    names = ["exclude_input_in_output"]
    if config.get("backend") != "inprocess":
        names += _REPORT_FLAGS
    return {name: inputs.true(name) for name in names if name in inputs}


def _requests_logprobs(params: SamplingParams) -> bool:
    return params.logprobs is not None or bool(params.logprob_token_ids)


def _finish_reason(reason: bytes) -> FinishReason | None:
    try:
        return _FINISH_REASONS[reason]
    except KeyError:
        text = reason.decode("utf-8", "replace")
        raise InferenceFailed(
            f"The engine ended the request with an unknown finish reason '{text}'."
        ) from None


def _stop_reason(outputs: Outputs) -> int | str | None:
    """The token id or stop string that ended the generation; NVIDIA's backend lacks it."""
    reason = outputs.item("stop_reason")
    return None if reason is None else orjson.loads(reason)


def _counts(outputs: Outputs) -> TokenCounts | None:
    completion_tokens = outputs.item("num_output_tokens")
    if completion_tokens is None:
        return None
    prompt_tokens = outputs.item("num_input_tokens") or 0
    return TokenCounts(
        prompt_tokens,
        completion_tokens,
        outputs.item("num_cached_tokens") or 0,
        outputs.item("num_image_tokens") or 0,
        outputs.item("num_audio_tokens") or 0,
        first_token_s=outputs.item("first_token_latency"),
    )


class _FirstCounts:
    """Decodes the prompt's counts in the first response of an in-process model."""

    def __init__(self, decode: Callable[[Outputs], CompletionDelta]) -> None:
        self._decode = decode
        self._first = True

    def decode(self, outputs: Outputs) -> CompletionDelta:
        delta = self._decode(outputs)
        if self._first:
            self._first = False
            if delta.counts is None:
                delta.counts = _counts(outputs)
        return delta


def _transfer_json(transfer: KVTransfer) -> str:
    members = {
        "params": transfer.params,
        "expires_ns": transfer.expires_ns,
        "rejected": transfer.rejected,
    }
    return orjson.dumps(members).decode()


def _decode_split(
    decode: Callable[[Outputs], CompletionDelta], decode_text: DecodeText, outputs: Outputs
) -> CompletionDelta:
    """With the text that is complete now."""
    delta = decode(outputs)
    last = outputs.final or delta.finish_reason is not None
    delta.text = decode_text(outputs.item("text_output") or b"", last)
    return delta


def _decode_transfer(
    decode: Callable[[Outputs], CompletionDelta], outputs: Outputs
) -> CompletionDelta:
    """With what the engine reports about a transfer, which no other request has."""
    delta = decode(outputs)
    if (counts := delta.counts) is not None:
        counts.transferred_tokens = outputs.item("num_transferred_tokens")
        if (params := outputs.item("kv_transfer_params")) is not None:
            counts.kv_transfer_params = orjson.loads(params)
    return delta


def _logprobs(text: bytes) -> list[Any] | None:
    """One mapping per token: token id -> logprob, rank, decoded_token. JSON has ids as text."""
    try:
        positions = orjson.loads(text)
    except orjson.JSONDecodeError:  # Python's json writes -Infinity
        positions = json.loads(text, parse_constant=lambda _: _LOWEST_LOGPROB)
    if positions is None:
        return None
    if b"null" in text:  # other JSON writers use null for minus infinity
        for position in positions:
            _replace_null(position or {})
    return [position and _by_token_id(position) for position in positions]


def _logprob_arrays(outputs: Outputs) -> list[TokenLogprobs] | None:
    """Read log probabilities from arrays, without rank and text."""
    ids = outputs.tolist("logprob_tokens")
    if not ids:
        return None
    entries = [
        (token_id, {"logprob": value})
        for token_id, value in zip(ids, outputs.tolist("logprob_values"), strict=True)
    ]
    positions = outputs.tensor("logprob_tokens").shape[0]
    if positions == 1:
        return [dict(entries)]
    width = len(ids) // positions
    return [dict(entries[at : at + width]) for at in range(0, len(ids), width)]


def _replace_null(position: Mapping[str, dict[str, Any]]) -> None:
    for entry in position.values():
        if entry["logprob"] is None:
            entry["logprob"] = _LOWEST_LOGPROB


def _by_token_id(position: Mapping[str, Mapping[str, Any]]) -> TokenLogprobs:
    return {int(token_id): entry for token_id, entry in position.items()}
