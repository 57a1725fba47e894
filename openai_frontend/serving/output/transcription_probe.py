"""Asks a transcription model for the language of audio, and whether it contains speech. Each answer
is the token that the model would write first, so it costs one token.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import aclosing

from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import (
    CompletionDelta,
    GenerationRequest,
    SamplingParams,
    UsageCounter,
)
from openai_frontend.media.languages import code_of
from openai_frontend.media.modalities import TranscriptionSupport
from openai_frontend.request_context.context import RequestContext
from openai_frontend.serving.admission.concurrency_limit import gather_bounded
from openai_frontend.serving.admission.model import ServingModel
from openai_frontend.serving.admission.permit import Admission
from openai_frontend.serving.output.completion_job import new_id
from openai_frontend.serving.request.audio import AudioWindow

START, _NO_TIMES = "<|startoftranscript|>", "<|notimestamps|>"
DEFAULT_LANGUAGE = "en"
_SILENCE = ("<|nospeech|>", "<|nocaptions|>")  # the second in older models


class TranscriptionProbe:
    """Asks one model on behalf of one request."""

    def __init__(self, context: RequestContext, model: ServingModel, admission: Admission) -> None:
        self._context = context
        self._model = model
        self._admission = admission

    @property
    def detects(self) -> bool:
        """Whether the model can be limited to its language tokens, whose ids are known."""
        return self._model.prompts is not None and self._model.supports("allowed_token_ids")

    async def language(self, window: AudioWindow, languages: Sequence[str]) -> str:
        """The likeliest of the languages; the default if they are not in the vocabulary."""
        codes = await self._ids(languages)
        params = SamplingParams(
            max_tokens=1, temperature=0.0, allowed_token_ids=list(codes), skip_special_tokens=False
        )
        [deltas] = await self._ask([window], params) if codes else [[]]
        written = [token_id for delta in deltas for token_id in delta.token_ids]
        return codes.get(written[0], DEFAULT_LANGUAGE) if written else DEFAULT_LANGUAGE

    async def silence(self, windows: Sequence[AudioWindow]) -> dict[int, float]:
        """The probability of no speech by window, if the model's vocabulary has a token for it."""
        token_id = await self._silence_id()
        if token_id is None:
            return {}
        params = SamplingParams(max_tokens=1, temperature=0.0, logprob_token_ids=[token_id])
        outputs = await self._ask(windows, params)
        logprobs = {at: _logprob(deltas, token_id) for at, deltas in enumerate(outputs)}
        return {at: math.exp(value) for at, value in logprobs.items() if value is not None}

    async def _ids(self, languages: Sequence[str]) -> Mapping[int, str]:
        """Id of a language's token -> its code."""
        tokens = "".join(f"<|{each}|>" for each in languages)
        ids = (await self._model.decoder_prompt(tokens)).token_ids
        return dict(zip(ids, languages, strict=True)) if len(ids) == len(languages) else {}

    async def _silence_id(self) -> int | None:
        if not self._model.supports("logprob_token_ids"):
            return None
        for name in _SILENCE:
            ids = (await self._model.decoder_prompt(name)).token_ids
            if len(ids) == 1:
                return ids[0]
        return None

    async def _ask(
        self, windows: Sequence[AudioWindow], params: SamplingParams
    ) -> list[list[CompletionDelta]]:
        """The deltas of one token for each window."""
        prompt, id = await self._model.decoder_prompt(START), new_id("probe")

        async def ask(at: int) -> list[CompletionDelta]:
            request = GenerationRequest(
                request_id=f"{id}-{at}",
                prompt=prompt.text,
                prompt_token_ids=prompt.token_ids or None,
                audio=windows[at].audio,
                sampling_params=params,
                return_token_ids=True,
                usage=UsageCounter(len(prompt.token_ids)),
            )
            async with aclosing(permit.generate(request)) as bursts:
                return [delta async for burst in bursts for delta in burst]

        wanted = len(windows)
        async with self._admission.enter(self._context, self._model, wanted=wanted) as permit:
            return await gather_bounded(ask, range(wanted), permit.granted)


def _logprob(deltas: Sequence[CompletionDelta], token_id: int) -> float | None:
    positions = [each for delta in deltas for each in delta.logprobs or ()]
    entry = positions[0].get(token_id) if positions else None
    return None if entry is None else float(entry["logprob"])


def language_code(named: str | None, support: TranscriptionSupport, *, detects: bool) -> str | None:
    """The code of the audio's language; None if the model must detect it."""
    known = support.languages or (DEFAULT_LANGUAGE,)
    if named is not None:
        code = code_of(named)
        if code not in known:
            listed = ", ".join(known)
            message = (
                f"Unsupported value: 'language' does not support '{code[:16]}' with this model. "
                f"Supported values are: {listed}."
            )
            raise InvalidRequest(message, param="language", code="unsupported_value")
        return code
    if len(known) == 1:
        return known[0]
    return None if detects else DEFAULT_LANGUAGE


def decoder_start(support: TranscriptionSupport, language: str, task: str, *, timed: bool) -> str:
    """The special tokens of the decoder's prompt. Models of English only know no others."""
    about = f"<|{language}|><|{task}|>" if support.languages else ""
    return f"{START}{about}{'' if timed else _NO_TIMES}"
