"""Prepares the prompts of transcription models such as Whisper: the encoder gets the audio, the
decoder the tokens of the prompt.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

from openai_frontend.engines.media import audio_digest
from openai_frontend.engines.vllm.media.images import (
    MediaCache,
    ProcessedItem,
    max_items,
    start_cache,
)
from openai_frontend.engines.vllm.media.worker import AudioRequest
from openai_frontend.generation import GenerationRequest
from openai_frontend.media.modalities import AudioInput, TranscriptionSupport

MODALITY = "audio"
_SAMPLE_BYTES = 4
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
_FIRST_TIME, _TRANSLATE = "<|0.00|>", "<|translate|>"


class PromptAudio:
    """The audio of one model. Not thread-safe: use it on the event loop."""

    def __init__(self, engine: Any, cache: MediaCache, facts: Mapping[str, Any]) -> None:
        """`facts` are those of `media_worker`."""
        self.cache = cache
        self._rate: int = facts["sample_rate"]
        self._window_s = float(facts["window_s"])
        self._tokenizer = engine.input_processor.tokenizer
        self._config = engine.model_config

    @property
    def support(self) -> TranscriptionSupport:
        """The audio that the model takes, and the texts that it writes."""
        vocabulary = self._tokenizer.get_vocab()
        languages = _languages(self._config, vocabulary)
        return TranscriptionSupport(
            sample_rate=self._rate,
            window_seconds=self._window_s,
            languages=languages,
            timestamps=_FIRST_TIME in vocabulary,
            translation=bool(languages) and _TRANSLATE in vocabulary,
        )

    def prepare(self, request: GenerationRequest) -> Any:
        """Return vLLM's input, or a task that returns it if the audio is new.

        Raises ValueError if the request has no audio.
        """
        if request.audio is None:
            raise ValueError("audio: the model transcribes audio, and the request has none")
        ids = request.prompt_token_ids
        if ids is not None and (found := self.cache.known([request.audio.digest])):
            return _prompt(request, ids, found[0])
        return self.cache.preparing(request.request_id, self._prepare(request, request.audio))

    def silence(self) -> AudioInput:
        """A tenth of a second, for a request that only has to be answered."""
        samples = memoryview(bytes(_SAMPLE_BYTES * (self._rate // 10)))
        return AudioInput(samples=samples, digest=audio_digest(samples))

    async def _prepare(self, request: GenerationRequest, audio: AudioInput) -> Any:
        if (ids := request.prompt_token_ids) is None:
            encoded: list[int] = await asyncio.to_thread(
                self._tokenizer.encode, request.prompt or "", add_special_tokens=False
            )
            ids = encoded
        asked = AudioRequest(audio.digest, audio.digest, request.cache_salt)
        try:
            item = await self.cache.processed(asked, [audio.samples], request.caller_id)
            return _prompt(request, ids, item)
        except ValueError as error:
            raise ValueError(f"audio: {error}") from None


def _languages(config: Any, vocabulary: Mapping[str, int]) -> list[str]:
    """Codes of the language tokens, by id; none for an English-only model, which may have them."""
    from vllm.model_executor.model_loader import get_model_cls

    if not config.try_get_generation_config().get("is_multilingual", True):
        return []
    known = get_model_cls(config).supported_languages
    found = ((_LANGUAGE.fullmatch(token), number) for token, number in vocabulary.items())
    codes = sorted((number, match[1]) for match, number in found if match and match[1] in known)
    return [code for _, code in codes]


def _prompt(request: GenerationRequest, ids: Sequence[int], audio: ProcessedItem) -> Any:
    """vLLM's input: it sees the audio as part of the decoder's prompt, at the encoder's places."""
    from vllm.inputs.engine import mm_input, tokens_input
    from vllm.multimodal.inputs import PlaceholderRange

    decoder = mm_input(
        list(ids),
        mm_kwargs={MODALITY: [audio.item]},
        mm_hashes={MODALITY: [audio.key]},
        mm_placeholders={MODALITY: [PlaceholderRange(0, audio.embeds)]},
        cache_salt=request.cache_salt,
    )
    encoder = tokens_input(audio.token_ids)
    return {"type": "enc_dec", "encoder_prompt": encoder, "decoder_prompt": decoder}


def start(engine: Any, parameters: Mapping[str, str]) -> PromptAudio:
    """Start the processes and wait until they are ready: see `start_cache`."""
    cache, facts = start_cache(engine, MODALITY, parameters)
    return PromptAudio(engine, cache, facts)


def is_transcriber(engine: Any) -> bool:
    """Whether the model has an encoder for audio, and a decoder for text."""
    return bool(engine.model_config.is_encoder_decoder and max_items(engine, MODALITY))
