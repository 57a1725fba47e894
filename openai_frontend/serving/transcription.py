"""Transcriptions and translations: from a form and a file to requests for windows of audio, from
their deltas to the text in each of OpenAI's formats.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import orjson

from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import (
    CompletionDelta,
    GenerationRequest,
    SamplingParams,
    TokenLogprobs,
    UsageCounter,
)
from openai_frontend.languages import name_of
from openai_frontend.modalities import TranscriptionSupport
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.serving.admission.concurrency_limit import (
    Bursts,
    ConcurrencyLimiter,
    ModelSlots,
)
from openai_frontend.serving.admission.model import ServingModel
from openai_frontend.serving.output.completion_job import new_id
from openai_frontend.serving.output.logprobs import Alternatives, ChatLogprobs, TokenNames, spelled
from openai_frontend.serving.output.speech_probe import (
    DEFAULT_LANGUAGE,
    SpeechProbe,
    decoder_start,
    language_code,
)
from openai_frontend.serving.output.transcript import (
    Segment,
    Transcript,
    separator,
    srt,
    verbose,
    vtt,
)
from openai_frontend.serving.request.audio import AudioReader, DecodedAudio
from openai_frontend.serving.request.field_policy import NEUTRAL_IN_TRANSCRIPTIONS, FieldPolicy
from openai_frontend.serving.request.sampling import SamplingOptions, sampling_params, unsupported
from openai_frontend.sse import DONE
from schemas.audio import SpeechToTextRequest, TranscriptionRequest
from schemas.sampling import SamplingFields

Task = Literal["transcribe", "translate"]

_TIMED = frozenset({"srt", "vtt", "verbose_json"})
_STREAMED = frozenset({"json", "text"})
_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty",
    "repetition_penalty",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionJob:
    """A transcription that is ready to run: a request for each window of the audio."""

    model: ServingModel
    slots: ModelSlots
    requests: Sequence[GenerationRequest]
    audio: DecodedAudio
    task: Task
    format: str
    language: str  # code, of the text
    timed: bool  # the response has the times that the model writes
    logprobs: bool
    # probability of no speech by window, if the model tells it
    silence: Mapping[int, float] = field(default_factory=dict)

    def bursts(self) -> Bursts:
        """The deltas of every window as they arrive. Closing the generator cancels the rest."""
        generations = [self.model.generate(each) for each in self.requests]
        return self.slots.bursts(generations, self.model.queue_key(0))

    def transcript(self) -> Transcript:
        """What gathers the deltas."""
        bounds = [(each.start_s, each.seconds) for each in self.audio.windows]
        return Transcript(bounds, separator(self.language))

    def duration(self) -> dict[str, Any]:
        """The usage in seconds, which OpenAI rounds up."""
        return {"type": "duration", "seconds": math.ceil(self.audio.seconds)}

    def usage(self) -> dict[str, Any]:
        """The usage that ends a stream: tokens, which is all that OpenAI's clients know there; for
        a model that counts none, seconds.
        """
        if not self.model.supports("running_counts"):
            return self.duration()
        prompt = sum(each.usage.prompt_tokens for each in self.requests)
        written = sum(each.usage.completion_tokens for each in self.requests)
        return {
            "type": "tokens",
            "input_tokens": prompt,
            "output_tokens": written,
            "total_tokens": prompt + written,
            "input_token_details": {"audio_tokens": 0, "text_tokens": prompt},
        }

    def wire_logprobs(self, positions: Sequence[TokenLogprobs]) -> list[Any]:
        """The fields of each TokenLogprob."""
        names = TokenNames(self.model.token_bytes, as_ids=False)
        entries = ChatLogprobs(names, Alternatives()).tokens(positions)["content"] or []
        return [{name: each[name] for name in ("token", "logprob", "bytes")} for each in entries]

    def segments(self, transcript: Transcript) -> list[Segment]:
        """The parts of the text with their times."""
        decode = partial(self.model.detokenize, skip_special_tokens=True)
        return transcript.segments(self._token_text, decode)

    def _token_text(self, token_id: int) -> str:
        return spelled(self.model.token_bytes(token_id) or b"")


class Transcriptions:
    """POST /v1/audio/transcriptions and /v1/audio/translations, independent of HTTP."""

    def __init__(
        self,
        policy: FieldPolicy,
        limiter: ConcurrencyLimiter,
        audio: AudioReader,
    ) -> None:
        self._policy = policy
        self._limiter = limiter
        self._audio = audio

    async def prepare(
        self, request: SpeechToTextRequest, file: bytes, model: ServingModel, task: Task
    ) -> TranscriptionJob:
        """A job that is ready to run. Decodes the audio, and detects its language if the request
        does not tell it.

        Raises for a full queue before anything is decoded, and for what this model does not
        support.
        """
        support = _support(model, task)
        slots = self._limiter.slots_for(model)
        slots.check(model.queue_key(0))
        self._policy.check_extra(request, NEUTRAL_IN_TRANSCRIPTIONS)
        format = request.response_format or "json"
        _check_fields(request, format, support, model)
        probe = SpeechProbe(model, slots)
        language = language_code(request.language, support, detects=probe.detects)
        params = _params(request, model)
        audio = await self._audio.read(file, support, model.model_name)
        # As OpenAI's own decoder: a model that writes times repeats and skips fewer words. They
        # would be among the log probabilities of tokens.
        marked = support.timestamps and not _wants_logprobs(request)
        timed = format in _TIMED and support.timestamps
        if language is None:
            language = await probe.language(audio.windows[0], support.languages)
        shows_silence = timed and format == "verbose_json"
        start = decoder_start(support, language, task, timed=marked)
        prompt = await model.decoder_prompt(start, request.prompt or "")
        sampling = _sampling(request, params, model, len(prompt.token_ids), timed=timed)
        if marked:
            sampling = replace(sampling, skip_special_tokens=False)
        requests = _requests(request, prompt, sampling, audio, timed=timed)
        model.reserve(requests[0])
        return TranscriptionJob(
            model=model,
            slots=slots,
            requests=requests,
            audio=audio,
            task=task,
            format=format,
            language=DEFAULT_LANGUAGE if task == "translate" else language,
            timed=timed,
            logprobs=_wants_logprobs(request),
            silence=await probe.silence(audio.windows) if shows_silence else {},
        )


def _requests(
    request: SpeechToTextRequest,
    prompt: Prompt,
    params: SamplingParams,
    audio: DecodedAudio,
    *,
    timed: bool,
) -> list[GenerationRequest]:
    """One for each window."""
    id, only = new_id("transcript"), len(audio.windows) == 1
    return [
        GenerationRequest(
            request_id=id if only else f"{id}-{at}",
            prompt=prompt.text,
            prompt_token_ids=prompt.token_ids or None,
            audio=window.audio,
            sampling_params=params,
            stream=bool(request.stream),
            return_token_ids=timed,
            usage=UsageCounter(len(prompt.token_ids)),
        )
        for at, window in enumerate(audio.windows)
    ]


def _support(model: ServingModel, task: Task) -> TranscriptionSupport:
    support = model.transcription
    if support is None:
        message = f"The model '{model.name}' does not transcribe audio."
        raise InvalidRequest(message, param="model", code="unsupported_model")
    if task == "translate" and not support.translation:
        message = f"The model '{model.name}' does not translate."
        raise InvalidRequest(message, param="model", code="unsupported_model")
    return support


def _check_fields(
    request: SpeechToTextRequest, format: str, support: TranscriptionSupport, model: ServingModel
) -> None:
    """Refuse what the model cannot do, and fields that contradict each other."""
    if request.stream and format not in _STREAMED:
        message = (
            "Unsupported value: with 'stream', 'response_format' must be json or text, "
            f"not {format}."
        )
        raise InvalidRequest(message, param="response_format", code="unsupported_value")
    if request.stream and not model.supports("stream"):
        raise unsupported("stream")
    if format in ("srt", "vtt") and not support.timestamps:
        message = (
            f"Unsupported value: 'response_format' {format} is not supported with this model, "
            "which reports no times."
        )
        raise InvalidRequest(message, param="response_format", code="unsupported_value")
    if request.prompt and model.prompts is None:
        raise unsupported("prompt")
    if isinstance(request, TranscriptionRequest):
        _check_times(request, format, support)
        if _wants_logprobs(request):
            if format != "json":
                message = "Unsupported value: 'include' logprobs needs 'response_format' json."
                raise InvalidRequest(message, param="include", code="unsupported_value")
            if not model.supports("logprobs"):
                raise unsupported("include")


def _check_times(request: TranscriptionRequest, format: str, support: TranscriptionSupport) -> None:
    if not (wanted := request.timestamp_granularities):
        return
    param = "timestamp_granularities"
    if "word" in wanted:
        message = f"Unsupported value: '{param}' word is not supported; only segment is."
        raise InvalidRequest(message, param=param, code="unsupported_value")
    if format != "verbose_json":
        message = f"'{param}' is only supported with 'response_format' verbose_json."
        raise InvalidRequest(message, param=param, code="unsupported_parameter")
    if not support.timestamps:
        raise unsupported(param)


def _wants_logprobs(request: SpeechToTextRequest) -> bool:
    return isinstance(request, TranscriptionRequest) and "logprobs" in (request.include or ())


def _params(request: SpeechToTextRequest, model: ServingModel) -> SamplingParams:
    """Sampling parameters; the temperature is 0 by default, as at OpenAI."""
    fields = {name: getattr(request, name) for name in _SAMPLING}
    given = {name: value for name, value in fields.items() if value is not None}
    given.setdefault("temperature", 0.0)
    if given["temperature"] == 0 and not model.supports("temperature"):
        del given["temperature"]
    if request.max_completion_tokens is not None and not model.supports("max_tokens"):
        raise unsupported("max_completion_tokens")
    return sampling_params(SamplingFields(**given), SamplingOptions(max_tokens=None), model)


def _sampling(
    request: SpeechToTextRequest,
    params: SamplingParams,
    model: ServingModel,
    prompt_tokens: int,
    *,
    timed: bool,
) -> SamplingParams:
    """For one window. Log probabilities are part of segments too."""
    wanted = _wants_logprobs(request) or (timed and model.supports("logprobs"))
    return replace(
        params,
        max_tokens=_max_tokens(request, model, prompt_tokens),
        logprobs=0 if wanted else None,
    )


def _max_tokens(
    request: SpeechToTextRequest, model: ServingModel, prompt_tokens: int
) -> int | None:
    """For one window: what the request and the operator allow; None if the model decides."""
    context = model.max_model_len
    room = None if context is None or not prompt_tokens else context - prompt_tokens
    limits = (request.max_completion_tokens, model.max_output_tokens, room)
    known = [each for each in limits if each is not None]
    return min(known) if known and model.supports("max_tokens") else None


class TranscriptStream:
    """The events of a stream, in order: new text, then all of it with the usage, then [DONE]."""

    def __init__(self, job: TranscriptionJob) -> None:
        self._job = job
        self._transcript = job.transcript()

    @property
    def finished(self) -> bool:
        """Whether every window has ended."""
        return self._transcript.finished

    def start(self) -> bytes:
        """No event before the first text."""
        return b""

    def feed(self, window: int, deltas: Sequence[CompletionDelta]) -> bytes:
        """The event of new text; empty if nothing follows what came before."""
        text, positions = self._transcript.feed(window, deltas)
        if not text and not positions:
            return b""
        event: dict[str, Any] = {"type": "transcript.text.delta", "delta": text}
        if self._job.logprobs:
            event["logprobs"] = self._job.wire_logprobs(positions)
        elif not text:
            return b""
        return _event(event)

    def relay(self, *_: Any) -> None:
        """Nothing bypasses `feed`: the windows' texts are joined here."""

    def relay_segment(self) -> None:
        """As `relay`."""

    def finish(self) -> bytes:
        """The last event. Raises InferenceFailed for incomplete output."""
        self._transcript.check_finished()
        event: dict[str, Any] = {"type": "transcript.text.done", "text": self._transcript.text}
        if self._job.logprobs:
            event["logprobs"] = self._job.wire_logprobs(self._transcript.logprobs)
        return _event({**event, "usage": self._job.usage()}) + DONE


def _event(fields: Mapping[str, Any]) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(fields)


async def complete(job: TranscriptionJob) -> str | dict[str, Any]:
    """The whole response: text, or the fields of Transcription or TranscriptionVerbose."""
    transcript = job.transcript()
    async with aclosing(job.bursts()) as bursts:
        async for burst in bursts:
            for window, deltas in burst:
                transcript.feed(window, deltas)
    transcript.check_finished()
    return _FORMATS[job.format](job, transcript)


def _json(job: TranscriptionJob, transcript: Transcript) -> dict[str, Any]:
    fields: dict[str, Any] = {"text": transcript.text}
    if job.logprobs:
        fields["logprobs"] = job.wire_logprobs(transcript.logprobs)
    return {**fields, "usage": job.duration()}


def _verbose_json(job: TranscriptionJob, transcript: Transcript) -> dict[str, Any]:
    segments = job.segments(transcript) if job.timed else []
    temperature = job.requests[0].sampling_params.temperature or 0.0
    fields: dict[str, Any] = {
        "task": job.task,
        "language": name_of(job.language),
        "duration": job.audio.seconds,
        "text": transcript.text,
    }
    if job.timed:
        fields["segments"] = verbose(segments, temperature, job.silence)
    return {**fields, "usage": job.duration()}


_FORMATS: Mapping[str, Callable[[TranscriptionJob, Transcript], str | dict[str, Any]]] = {
    "json": _json,
    "text": lambda job, transcript: f"{transcript.text}\n",
    "srt": lambda job, transcript: srt(job.segments(transcript)),
    "vtt": lambda job, transcript: vtt(job.segments(transcript)),
    "verbose_json": _verbose_json,
}
