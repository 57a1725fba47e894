"""Transcriptions and translations: from a form and a file to requests for windows of audio, from
their deltas to the text in each of OpenAI's formats.
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeVar

import orjson

from openai_frontend import sse
from openai_frontend.admission.memory_budget import RequestMemory
from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import (
    CompletionDelta,
    GenerationRequest,
    SamplingParams,
    TokenLogprobs,
    UsageCounter,
)
from openai_frontend.media.languages import name_of
from openai_frontend.media.modalities import TranscriptionSupport
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.request_context.context import RequestContext, current_request
from openai_frontend.serving.admission.concurrency_limit import Bursts
from openai_frontend.serving.admission.model import Describes, Renders, ServingModel
from openai_frontend.serving.admission.permit import Admission
from openai_frontend.serving.error_reply import ErrorReply
from openai_frontend.serving.output.completion_job import new_id
from openai_frontend.serving.output.logprobs import (
    Alternatives,
    ChatLogprobs,
    TokenNames,
    spelled,
)
from openai_frontend.serving.output.transcript import (
    VTT_HEAD,
    Segment,
    Transcript,
    separator,
    srt_block,
    verbose_segment,
    vtt_block,
)
from openai_frontend.serving.output.transcription_probe import (
    DEFAULT_LANGUAGE,
    TranscriptionProbe,
    decoder_start,
    language_code,
)
from openai_frontend.serving.pooling import TimeSlicer
from openai_frontend.serving.request.audio import AudioReader, DecodedAudio
from openai_frontend.serving.request.field_policy import NEUTRAL_IN_TRANSCRIPTIONS, FieldPolicy
from openai_frontend.serving.request.sampling import SamplingOptions, sampling_params, unsupported
from schemas.audio import SpeechToTextRequest, TranscriptionRequest
from schemas.sampling import SamplingFields

Task = Literal["transcribe", "translate"]
Written = TypeVar("Written")

# Event loop time of a segment, or of looking for one; of gathering a token, and of writing its log
# probability
_SEGMENT_US, _TOKEN_US, _LOGPROB_US = 60.0, 0.2, 10.0

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
    context: RequestContext
    admission: Admission
    requests: list[GenerationRequest]  # with the samples; `bursts` takes them
    bounds: Sequence[tuple[float, float]]  # start and length of each window in seconds
    seconds: float  # of the audio
    temperature: float
    usages: Sequence[UsageCounter]
    memory: RequestMemory  # of the samples
    slicer: TimeSlicer
    task: Task
    format: str
    language: str  # code, of the text
    timed: bool  # the response has the times that the model writes
    logprobs: bool
    # probability of no speech by window, if the model tells it
    silence: Mapping[int, float] = field(default_factory=dict)

    async def bursts(self) -> Bursts:
        """The deltas of every window as they arrive, once. Closing the generator cancels the rest.

        The samples end with the model's work, however long the response takes.
        """
        requests = [*self.requests]
        self.requests.clear()
        try:
            bursts = self.admission.bursts(self.context, self.model, requests)
            del requests
            async with aclosing(bursts):
                async for burst in bursts:
                    yield burst
        finally:
            self.memory.release()

    def transcript(self) -> Transcript:
        """The object that gathers the deltas."""
        entries = self._wire_logprobs if self.logprobs else None
        return Transcript(self.bounds, separator(self.language), entries)

    def duration(self) -> dict[str, Any]:
        """The usage in seconds, which OpenAI rounds up."""
        return {"type": "duration", "seconds": math.ceil(self.seconds)}

    def usage(self) -> dict[str, Any]:
        """The usage that ends a stream: tokens, which is all that OpenAI's clients know there; for
        a model that counts none, seconds.
        """
        if not self.model.supports("running_counts"):
            return self.duration()
        prompt = sum(each.prompt_tokens for each in self.usages)
        written = sum(each.completion_tokens for each in self.usages)
        return {
            "type": "tokens",
            "input_tokens": prompt,
            "output_tokens": written,
            "total_tokens": prompt + written,
            "input_token_details": {"audio_tokens": 0, "text_tokens": prompt},
        }

    def _wire_logprobs(self, positions: Sequence[TokenLogprobs]) -> list[Any]:
        """The fields of each TokenLogprob."""
        names = TokenNames(self.model.token_bytes, as_ids=False)
        entries = ChatLogprobs(names, Alternatives()).tokens(positions)["content"] or []
        return [{name: each[name] for name in ("token", "logprob", "bytes")} for each in entries]

    async def segments(
        self, transcript: Transcript, write: Callable[[int, Segment], Written]
    ) -> list[Written]:
        """The parts of the text with their times, each written with its number from 0."""
        decode = partial(self.model.detokenize, skip_special_tokens=True)
        written: list[Written] = []
        for each in transcript.segments(self._token_text, decode):
            await self.slicer.take(_SEGMENT_US)
            if each is not None:
                written.append(write(len(written), each))
        return written

    def _token_text(self, token_id: int) -> str:
        return spelled(self.model.token_bytes(token_id) or b"")


class Transcriptions:
    """POST /v1/audio/transcriptions and /v1/audio/translations, independent of HTTP."""

    def __init__(
        self,
        policy: FieldPolicy,
        admission: Admission,
        audio: AudioReader,
    ) -> None:
        self._policy = policy
        self._admission = admission
        self._audio = audio
        self._slicer = TimeSlicer()

    async def prepare(
        self,
        request: SpeechToTextRequest,
        file: bytes,
        model: ServingModel,
        task: Task,
        memory: RequestMemory,
    ) -> TranscriptionJob:
        """A job that is ready to run. Decodes the audio, and detects its language if the request
        does not tell it.

        Raises for a full queue before anything is decoded, and for what the model lacks.
        """
        support, format = _support(model, task), request.response_format or "json"
        context = current_request()
        self._admission.check(context, model)
        self._policy.check_extra(request, NEUTRAL_IN_TRANSCRIPTIONS)
        _check_fields(request, format, support, model)
        probe = TranscriptionProbe(context, model, self._admission)
        language = language_code(request.language, support, detects=probe.detects)
        params = _params(request, model)
        audio = await self._audio.read(file, support, model.model_name, memory)
        timed = format in _TIMED and support.timestamps
        shows_silence = timed and format == "verbose_json"
        if language is None:
            language = await probe.language(audio.windows[0], support.languages)
        start = decoder_start(support, language, task, timed=_is_marked(request, support))
        prompt = await model.decoder_prompt(start, request.prompt or "")
        sampling = _sampling(request, params, model, len(prompt.token_ids), timed=timed)
        # Whatever the model's own default is: times are special tokens
        sampling = replace(sampling, skip_special_tokens=not _is_marked(request, support))
        requests = _requests(request, prompt, sampling, audio, timed=timed)
        return TranscriptionJob(
            model=model,
            context=context,
            admission=self._admission,
            requests=requests,
            bounds=[(each.start_s, each.seconds) for each in audio.windows],
            seconds=audio.seconds,
            temperature=params.temperature or 0.0,
            usages=[each.usage for each in requests],
            memory=memory,
            slicer=self._slicer,
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


def _support(model: Describes, task: Task) -> TranscriptionSupport:
    support = model.facts.transcription
    if support is None:
        message = f"The model '{model.name}' does not transcribe audio."
        raise InvalidRequest(message, param="model", code="unsupported_model")
    if task == "translate" and not support.translation:
        message = f"The model '{model.name}' does not translate."
        raise InvalidRequest(message, param="model", code="unsupported_model")
    return support


def _check_fields(
    request: SpeechToTextRequest, format: str, support: TranscriptionSupport, model: Renders
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


def _is_marked(request: SpeechToTextRequest, support: TranscriptionSupport) -> bool:
    """Whether the model writes times. As OpenAI's own decoder: it repeats and skips fewer words
    then. They would be among the log probabilities of tokens.
    """
    return support.timestamps and not _wants_logprobs(request)


def _params(request: SpeechToTextRequest, model: Describes) -> SamplingParams:
    """Sampling parameters; the temperature is 0 by default, as at OpenAI."""
    fields = {name: getattr(request, name) for name in _SAMPLING}
    values = {name: value for name, value in fields.items() if value is not None}
    values.setdefault("temperature", 0.0)
    if values["temperature"] == 0 and not model.supports("temperature"):
        del values["temperature"]
    if request.max_completion_tokens is not None and not model.supports("max_tokens"):
        raise unsupported("max_completion_tokens")
    return sampling_params(SamplingFields(**values), SamplingOptions(max_tokens=None), model)


def _sampling(
    request: SpeechToTextRequest,
    params: SamplingParams,
    model: Describes,
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


def _max_tokens(request: SpeechToTextRequest, model: Describes, prompt_tokens: int) -> int | None:
    """For one window: what the request and the operator allow; None if the model decides."""
    context = model.facts.max_model_len
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
        text, entries = self._transcript.feed(window, deltas)
        if not text and not entries:
            return b""
        event: dict[str, Any] = {"type": "transcript.text.delta", "delta": text}
        if self._job.logprobs:
            event["logprobs"] = entries
        return sse.event(orjson.dumps(event))

    def relay(self, *_: Any) -> None:
        """Nothing bypasses `feed`: the windows' texts are joined here."""

    def relay_segment(self) -> None:
        """Like `relay`."""

    def keep_alive(self) -> None:
        """A comment is enough."""

    def failure(self, failure: ErrorReply, unsent: bytes) -> bytes:
        """One event with the error."""
        return sse.error_event(failure.body)

    def finish(self) -> bytes:
        """The last event. Raises InferenceFailed for incomplete output."""
        self._transcript.check_finished()
        event: dict[str, Any] = {"type": "transcript.text.done", "text": self._transcript.text}
        if self._job.logprobs:
            event["logprobs"] = self._transcript.logprobs
        return sse.event(orjson.dumps({**event, "usage": self._job.usage()})) + sse.DONE


async def complete(job: TranscriptionJob) -> str | dict[str, Any]:
    """The whole response: text, or the fields of Transcription or TranscriptionVerbose.

    Frees the event loop in between: 25 minutes of audio may have 20,000 tokens.
    """
    transcript = job.transcript()
    async with aclosing(job.bursts()) as bursts:
        async for burst in bursts:
            for window, deltas in burst:
                tokens = sum(len(each.logprobs or each.token_ids) for each in deltas)
                await job.slicer.take(tokens * (_LOGPROB_US if job.logprobs else _TOKEN_US))
                transcript.feed(window, deltas)
    transcript.check_finished()
    return await _FORMATS[job.format](job, transcript)


async def _json(job: TranscriptionJob, transcript: Transcript) -> dict[str, Any]:
    fields: dict[str, Any] = {"text": transcript.text}
    if job.logprobs:
        fields["logprobs"] = transcript.logprobs
    return {**fields, "usage": job.duration()}


async def _text(job: TranscriptionJob, transcript: Transcript) -> str:
    return f"{transcript.text}\n"


async def _srt(job: TranscriptionJob, transcript: Transcript) -> str:
    return "".join(await job.segments(transcript, lambda number, each: srt_block(number + 1, each)))


async def _vtt(job: TranscriptionJob, transcript: Transcript) -> str:
    return VTT_HEAD + "".join(await job.segments(transcript, lambda _, each: vtt_block(each)))


async def _verbose_json(job: TranscriptionJob, transcript: Transcript) -> dict[str, Any]:
    def write(number: int, segment: Segment) -> dict[str, Any]:
        silence = job.silence.get(segment.window)
        return verbose_segment(number, segment, job.temperature, silence)

    fields: dict[str, Any] = {
        "task": job.task,
        "language": name_of(job.language),
        "duration": job.seconds,
        "text": transcript.text,
    }
    if job.timed:
        fields["segments"] = await job.segments(transcript, write)
    return {**fields, "usage": job.duration()}


_FORMATS: Mapping[
    str, Callable[[TranscriptionJob, Transcript], Awaitable[str | dict[str, Any]]]
] = {"json": _json, "text": _text, "srt": _srt, "vtt": _vtt, "verbose_json": _verbose_json}
