"""The audio resources: OpenAI's fields first, then the supported fields of vLLM."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from schemas.sampling import INT32_MAX, INT64_MAX, ModelName, RequestFields

MAX_INPUT_CHARACTERS = 4096  # OpenAI's, of a text to be spoken
ResponseFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]


class SpeechToTextRequest(RequestFields):
    """The fields that transcriptions and translations share, besides the file."""

    model: ModelName = None
    prompt: Annotated[str, Field(max_length=16_384)] | None = None
    response_format: ResponseFormat | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None

    # vLLM's
    language: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    stream: bool | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None


class TranscriptionRequest(SpeechToTextRequest):
    """The form of POST /v1/audio/transcriptions, without `file`."""

    include: Annotated[list[Literal["logprobs"]], Field(max_length=8)] | None = None
    timestamp_granularities: (
        Annotated[list[Literal["segment", "word"]], Field(max_length=8)] | None
    ) = None
    chunking_strategy: Literal["auto"] | None = None  # what the server does in any case


class TranslationRequest(SpeechToTextRequest):
    """The form of POST /v1/audio/translations, without `file`; `language` is that of the audio."""


class TokenLogprob(BaseModel):
    """A token of the text and its log probability."""

    token: str
    logprob: float
    bytes: list[int]


class InputTokenDetails(BaseModel):
    """Input tokens by kind."""

    audio_tokens: int
    text_tokens: int


class TokenUsage(BaseModel):
    """Tokens of the decoder: its prompt, and the text."""

    type: Literal["tokens"] = "tokens"
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_token_details: InputTokenDetails


class DurationUsage(BaseModel):
    """Seconds of audio, rounded up."""

    type: Literal["duration"] = "duration"
    seconds: int


class Transcription(BaseModel):
    """The response in the format `json`."""

    text: str
    logprobs: list[TokenLogprob] | None = None
    usage: DurationUsage


class TranscriptionSegment(BaseModel):
    """A part of the text, and when it was spoken; times are in seconds."""

    id: int
    seek: int  # where the model's window begins, in hundredths of a second
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float | None  # null: the model reports none
    compression_ratio: float
    no_speech_prob: float | None  # null: the model reports none


class TranscriptionVerbose(BaseModel):
    """The response in the format `verbose_json`."""

    task: Literal["transcribe", "translate"]
    language: str  # the English name
    duration: float  # seconds
    text: str
    segments: list[TranscriptionSegment] | None = None  # absent: the model knows no times
    usage: DurationUsage


class TranscriptTextDelta(BaseModel):
    """An event of a stream: new text."""

    type: Literal["transcript.text.delta"] = "transcript.text.delta"
    delta: str
    logprobs: list[TokenLogprob] | None = None


class TranscriptTextDone(BaseModel):
    """The last event of a stream: all of the text."""

    type: Literal["transcript.text.done"] = "transcript.text.done"
    text: str
    logprobs: list[TokenLogprob] | None = None
    usage: TokenUsage | DurationUsage


class VoiceId(RequestFields):
    """A voice by its id."""

    id: Annotated[str, Field(min_length=1, max_length=256)]


class CreateSpeechRequest(RequestFields):
    """The body of POST /v1/audio/speech."""

    model: ModelName = None
    input: Annotated[str, Field(min_length=1, max_length=MAX_INPUT_CHARACTERS)]
    voice: Annotated[str, Field(min_length=1, max_length=256)] | VoiceId | None = None
    instructions: Annotated[str, Field(max_length=MAX_INPUT_CHARACTERS)] | None = None
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] | None = None
    speed: Annotated[float, Field(ge=0.25, le=4)] | None = None
    stream_format: Literal["sse", "audio"] | None = None
