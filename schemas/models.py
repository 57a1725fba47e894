"""The models resource, and vLLM's requests that load and unload LoRA adapters."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from schemas.sampling import RequestFields

_AdapterName = Annotated[str, Field(max_length=512)]


class Capabilities(BaseModel):
    """Which requests a model supports."""

    chat: bool
    completions: bool
    embeddings: bool  # one vector for each input
    sparse_embeddings: bool
    token_embeddings: bool  # vectors of tokens; of /v1/embeddings too, without `embeddings`
    rerank: bool
    classification: bool
    moderation: bool
    tools: bool
    reasoning: bool
    images: bool
    audio: bool
    transcription: bool
    speech: bool


class ImageLimits(BaseModel):
    """Image support of the model; `detail` are the values that a request may set."""

    formats: list[str]
    detail: list[str]
    max_images: int  # per request
    max_image_bytes: int
    max_image_pixels: int
    max_pixels: int
    max_tokens_per_image: int | None  # null: unknown


class InputAudioLimits(BaseModel):
    """Audio support in chats."""

    formats: list[str]
    max_audio_files: int  # per request
    max_audio_bytes: int  # of one file, as the following
    max_audio_seconds: float
    max_tokens_per_audio: int | None  # null: unknown


class AudioLimits(BaseModel):
    """Audio input of a transcription model, and its languages and abilities."""

    formats: list[str]
    languages: list[str]  # codes; empty: English only
    timestamps: bool
    translation: bool
    window_seconds: float  # longer audio is cut at pauses
    max_audio_bytes: int
    max_audio_seconds: int


Modality = Literal["text", "image", "audio"]


class TrainedContext(BaseModel):
    """The context length under llama.cpp's name."""

    n_ctx_train: int | None


class LoadStatus(BaseModel):
    """Whether requests can use the model now, as llama.cpp's router states it."""

    value: Literal["loaded", "loading", "sleeping", "unloaded", "failed"]


class Model(BaseModel):
    """A model that requests can name. Fields after `owned_by` are not OpenAI's; some are vLLM's."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    root: str | None = None
    parent: str | None = None  # the base model of an adapter
    max_model_len: int | None = None  # prompt and answer together, in tokens
    context_length: int | None = None  # as max_model_len, for clients that read this name
    context_window: int | None = None  # as max_model_len, for clients that read this name
    max_output_tokens: int | None = None  # the limit for one answer; null: the context
    meta: TrainedContext = TrainedContext(n_ctx_train=None)
    status: LoadStatus = LoadStatus(value="loaded")
    input_modalities: list[Modality] = []
    output_modalities: list[Modality] = []  # empty for embeddings and scores
    capabilities: Capabilities
    images: ImageLimits | None = None  # null: it takes no images
    input_audio: InputAudioLimits | None = None  # null: its chats contain no audio
    audio: AudioLimits | None = None  # null: it transcribes no audio
    description: str | None = None
    limitations: list[str] | None = None  # what the installed engine cannot do, if anything
    ready: bool = True
    error: str | None = None  # why it is not ready


class ModelList(BaseModel):
    """All models that requests can name."""

    object: Literal["list"] = "list"
    data: list[Model]


class ModelChangeRequest(RequestFields):
    """The body of POST /v1/models/{id}/load and /unload; optional."""

    stream: bool | None = None  # send events while the model is being loaded or unloaded


class ModelSleepRequest(ModelChangeRequest):
    """The body of POST /v1/models/{id}/sleep; optional."""

    # 1: the weights stay in main memory; 2: they are dropped. By default the model's `sleep_level`
    level: Annotated[int, Field(ge=1, le=2)] | None = None


class SleepState(BaseModel):
    """Whether a model sleeps, in vLLM's form."""

    is_sleeping: bool


class ModelProgress(BaseModel):
    """The progress of a load or an unload."""

    model: str
    object: Literal["model.progress"] = "model.progress"
    state: str  # LOADING, UNLOADING, READY, UNAVAILABLE, UNKNOWN
    phase: str | None  # of a load: what the engine does at the moment, such as "warming up"
    running: int  # requests in progress; an unload waits for them
    elapsed_s: float
    done: bool  # true in the last event


class LoadLoRAAdapterRequest(RequestFields):
    """The body of POST /v1/load_lora_adapter."""

    lora_name: _AdapterName  # the adapter's name, or `base:adapter`
    model: _AdapterName | None = None  # the base; optional if only one model has the adapter
    lora_path: Annotated[str, Field(max_length=4096)] | None = (
        None  # the name; clients choose no folder
    )
    load_inplace: bool | None = None  # no effect: changed files are always loaded again


class UnloadLoRAAdapterRequest(RequestFields):
    """The body of POST /v1/unload_lora_adapter."""

    lora_name: _AdapterName
    model: _AdapterName | None = None


class AdapterUnloaded(BaseModel):
    """The adapter has been unloaded."""

    id: str
    object: Literal["model"] = "model"
    deleted: Literal[True] = True
