"""The settings of a mock model: its `model.json`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from openai_frontend.engines.engine import ModelSpec
from openai_frontend.engines.mock.script import PromptMarkers, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class MockSettings:
    """`model.json` of a mock model. Every field has a default, so the file is optional."""

    tokens: tuple[str, ...] = (" token",)  # the output's tokens, repeated
    answer_tokens: int | None = None  # the output stops here; None: only at max_tokens
    turns: tuple[Turn, ...] = ()  # outputs by prompt instead of `tokens`; need a tokenizer
    # How `turns` find the messages in a prompt
    markers: PromptMarkers = field(default_factory=PromptMarkers)
    tokens_per_second: float = 0.0  # per stream; 0: as fast as the event loop allows
    first_token_delay_s: float = 0.0
    prefill_tokens_per_second: float = 0.0  # one prompt after another; 0: prompts take no time
    prefix_cache_blocks: int = 0  # 0: no prefix cache
    block_size: int = 16  # tokens
    kv_events_config: Mapping[str, Any] | None = None  # as vLLM's; needs a tokenizer and blocks
    fail_after_tokens: int | None = None  # fail the request here
    die_after_tokens: int | None = None  # fail the whole engine here, permanently
    hang_after_tokens: int | None = None  # stop the whole engine here, once, for `hang_s`
    hang_s: float = 3600.0
    never_ends: bool = False  # send the last token without a finish reason
    ignores_cancel: bool = False  # keep generating for callers that are gone
    fail_at_load: str | None = None  # fail the load with this message
    load_s: float = 0.0
    sleep_obstacle: str | None = None  # why the engine cannot sleep
    sleep_s: float = 0.0
    wake_s: float = 0.0
    sleep_frees_bytes: int = 0
    failed_wakes: int = 0  # of this process's engine: so many wakes fail
    max_model_len: int = 4096
    max_running: int = 1024  # concurrent streams; further ones wait
    tokenizer: str | None = None  # folder; "./" is relative to the version's folder
    tasks: tuple[str, ...] = ("generate", "embed", "score")
    dimensions: int = 8  # of an embedding
    labels: tuple[str, ...] = ()  # of a classifier; needs the task "classify"
    max_lora_rank: int | None = None  # None: no LoRA; an adapter's output is its name
    kv_role: str | None = None  # kv_producer, kv_consumer: transfers KV caches; None: none
    kv_lease_s: float = 30.0
    kv_address: str = "127.0.0.1:0"  # what a producer says that it listens on
    images_per_prompt: int = 0  # 0: no images
    tokens_per_image: int = 16  # of the prompt, where its placeholder is one
    describe_images: bool = False  # the output says what images arrived, one token each
    audio_files_per_prompt: int = 0  # 0: no audio in prompts
    tokens_per_audio: int = 10  # of the prompt, where its placeholder is one
    audio_window_s: float = 0.0  # the longest audio to transcribe, at 16 kHz; 0: none
    # The output says what audio arrived: each file in one token, or the samples to transcribe
    describe_audio: bool = False

    def tokenizer_folder(self, model: ModelSpec) -> str | None:
        """The tokenizer's folder, as the gateway finds it."""
        folder = self.tokenizer
        if folder is not None and folder.startswith("./"):
            return str(model.version_folder / folder)
        return folder


def read_settings(model: ModelSpec) -> MockSettings:
    """The settings in model.json. Raises ValueError, with the file's name."""
    arguments = dict(model.arguments)
    for name in ("tokens", "tasks", "labels"):
        if name in arguments:
            arguments[name] = tuple(arguments[name])
    try:
        if "turns" in arguments:
            arguments["turns"] = tuple(Turn(**turn) for turn in arguments["turns"])
        if "markers" in arguments:
            arguments["markers"] = PromptMarkers(**arguments["markers"])
        if arguments.get("turns") and arguments.get("tokenizer") is None:
            raise TypeError("turns: set `tokenizer`, which makes the tokens of the outputs")
        return MockSettings(**arguments)
    except TypeError as error:
        raise ValueError(f"{model.version_folder / 'model.json'}: {error}") from error
