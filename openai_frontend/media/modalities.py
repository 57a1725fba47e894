"""Inputs and outputs of models besides text: images, audio and speech."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class ImageInput:
    """One image of a prompt, as the client sent it: its header is checked, nothing is decoded."""

    base64: str  # without `data:...;base64,`; who decodes it checks alphabet and padding
    digest: str  # hex SHA-256 of `base64`
    width: int  # pixels, from the header
    height: int
    format: str  # "png", "jpeg", "gif" or "webp", from the first bytes
    detail: str = "auto"  # auto, low, high or original
    param: str = ""  # its place in the request, for errors


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSupport:
    """Image support of a model."""

    max_per_request: int | None = None  # None: only the server's limit
    max_tokens_per_image: int | None = None  # None: unknown
    # Placeholder of an image in prompts, for templates that write none
    placeholder: str | None = None
    details: Sequence[str] = ("auto", "high")  # values of `ImageInput.detail`
    # The model applies a chat template itself, to one question
    takes_question: bool = False
    # TensorRT-LLM's model keeps prompts with different images apart by `prompt_table_extra_id`
    needs_table_id: bool = False
    # Token ids of a placeholder, and those that replace it if they are the same for every image
    target: Sequence[int] = ()
    tokens: Sequence[int] | None = None

    def expanded(self, prompt: Sequence[int]) -> Sequence[int]:
        """The prompt with the tokens of its images, as the engine counts it; unchanged if they
        depend on the image.
        """
        return expanded(prompt, self.target, self.tokens)


def expanded(
    prompt: Sequence[int], target: Sequence[int], tokens: Sequence[int] | None
) -> Sequence[int]:
    """The prompt with these tokens instead of each target; unchanged if they are unknown."""
    if tokens is None or not target:
        return prompt
    ids, end = list[int](), 0
    for position in positions(prompt, target):
        ids += [*prompt[end:position], *tokens]
        end = position + len(target)
    return [*ids, *prompt[end:]]


def positions(prompt: Sequence[int], target: Sequence[int]) -> list[int]:
    """First indices of the target in a prompt, without overlaps."""
    first, size = target[0], len(target)
    found, start = [], 0
    try:
        while True:
            start = prompt.index(first, start)
            if size == 1 or list(prompt[start : start + size]) == list(target):
                found.append(start)
                start += size
            else:
                start += 1
    except ValueError:
        return found


@dataclass(slots=True, kw_only=True)
class AudioFile:
    """An audio file in a prompt, as the client sent it: nothing of it is decoded."""

    base64: str  # who decodes it checks alphabet and padding
    digest: str  # hex SHA-256 of `base64`
    format: str  # "wav", "flac", "ogg" or "mp3", from the first bytes; "": unknown
    # The server's limits, which are checked where it is decoded; samples of all channels
    max_seconds: float
    max_samples: int
    param: str = ""  # its place in the request, for errors


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioSupport:
    """Support for audio in prompts."""

    max_per_request: int | None = None  # None: only the server's limit
    max_seconds: float | None = None  # of one file; None: only the server's limit
    max_tokens_per_audio: int | None = None  # None: unknown
    # Placeholder of audio in prompts, for templates that write none
    placeholder: str | None = None
    # Token ids of a placeholder, and those that replace it if they are the same for all audio
    target: Sequence[int] = ()
    tokens: Sequence[int] | None = None

    def expanded(self, prompt: Sequence[int]) -> Sequence[int]:
        """Like `ImageSupport.expanded`."""
        return expanded(prompt, self.target, self.tokens)


@dataclass(slots=True, kw_only=True)
class AudioInput:
    """The input of a transcription model: at most one window of sound."""

    samples: memoryview  # little-endian float32, mono, at the model's sampling rate
    digest: str  # hex SHA-256 of the bytes of `samples`; of a request to an engine: salted
    param: str = ""  # its place in the request, for errors


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionSupport:
    """Input and output of a transcription model such as Whisper."""

    sample_rate: int  # Hz
    window_seconds: float  # the longest audio of one request
    # The model's language tokens, such as "en" of `<|en|>`. Empty: English only, and prompts have
    # neither a language nor a task.
    languages: Sequence[str]
    timestamps: bool  # whether it writes times, in steps of 0.02 s
    translation: bool  # whether it translates into English


def salted_digest(media: ImageInput | AudioFile | AudioInput, cache_salt: str | None) -> str:
    """The media's name in engines' caches, which only requests with the same salt share."""
    return salted(media.digest, cache_salt)


def salted(digest: str, cache_salt: str | None) -> str:
    """Return the digest; with a cache salt, hex SHA-256 of `SALT:DIGEST`."""
    if cache_salt is None:
        return digest
    return hashlib.sha256(f"{cache_salt}:{digest}".encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechRequest:
    """A text to be spoken. None: the model's default."""

    request_id: str
    text: str
    voice: str | None = None
    speed: float | None = None
    instructions: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechSupport:
    """Inputs of a text-to-speech model besides the text."""

    sample_rate: int  # Hz, of its waveforms
    fields: frozenset[str]  # of SpeechRequest
    streams: bool  # whether it sends a waveform in parts


@dataclass(slots=True)
class EngineMediaLimits:
    """The operator's limits, which also hold for what `media_info` states: any client of KServe may
    send it. They are the settings' defaults until the application sets them.
    """

    max_image_pixels: int = 25_000_000
    max_audio_seconds: float = 1500.0
    max_audio_samples: int = 150_000_000


ENGINE_LIMITS = EngineMediaLimits()
"""Those of the process, shared by the application and the engines in it."""
