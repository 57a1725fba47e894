"""Facts about a model, as its engine reports them, or its files and options state them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openai_frontend.media.modalities import AudioSupport, ImageSupport, TranscriptionSupport


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTransferFacts:
    """How an engine exchanges KV caches with others (docs/disaggregation.md)."""

    role: str  # "kv_producer", "kv_consumer", "kv_both"
    recomputes: bool = True  # whether a failed transfer only costs the time to compute the prompt
    lease_s: float = 0  # for which a producer keeps a cache that was not read
    block_size: int = 0  # tokens
    blocks: int = 0  # in the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts about a loaded model. Its engine reports them; for a model without an engine in this
    process, they come from its files and its operator.
    """

    # Prompt and output together, in tokens. None: unknown; an engine always reports it
    max_model_len: int | None
    tokenizer: str | None = None  # folder with tokenizer and chat template; None: no chat
    # Some of "generate", "score" and the pooling tasks; None: all that the model's tensors allow
    tasks: tuple[str, ...] | None = ("generate",)
    owned_by: str = "openai-frontend"
    vocab_size: int | None = None  # upper bound (exclusive) of token ids; None: unknown
    dimensions: int | None = None  # embedding size; None: unknown, or no embeddings
    matryoshka: bool | None = None  # whether requests may ask for shorter embeddings
    labels: tuple[str, ...] | None = None  # of its classes, in the order of its scores
    description: str | None = None
    max_lora_rank: int | None = None  # None: its engine does not support LoRA
    kv_transfer: KVTransferFacts | None = None  # None: it exchanges no KV caches
    images: ImageSupport | None = None  # None: it takes no images
    audio: AudioSupport | None = None  # None: its prompts contain no audio
    transcription: TranscriptionSupport | None = None  # None: no transcription model
    # Names of logits processors that requests may choose; None: unknown, the engine decides
    logits_processors: tuple[str, ...] | None = None
    # Why it cannot sleep; None: it can (docs/models.md)
    sleep_obstacle: str | None = "its engine cannot sleep"
    # Features that this installation of the engine lacks, one sentence each
    limitations: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Users write engines: a mapping in place of a class is an error that names the field."""
        for name, kind in _SUPPORTS.items():
            value = getattr(self, name)
            if not isinstance(value, kind | None):
                found = type(value).__name__
                raise TypeError(f"ModelFacts: {name} must be {kind.__name__} or None, not {found}")


_SUPPORTS: Mapping[str, type[Any]] = {
    "images": ImageSupport,
    "audio": AudioSupport,
    "transcription": TranscriptionSupport,
}

# A model of another backend, before anything about it is read
OTHER_BACKEND = ModelFacts(max_model_len=None, tasks=None, owned_by="triton")
