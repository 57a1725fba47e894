"""Options of one model, from `openai_frontend.yaml` next to its config.pbtxt and from settings."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from openai_frontend.admission.queue import ConcurrencyLimits
from openai_frontend.config import strict_yaml
from openai_frontend.config.moderation_options import ModerationOptions
from openai_frontend.errors import ModelUnavailable, did_you_mean
from schemas.models import Capabilities

FILE = "openai_frontend.yaml"

EVERY_MODEL = "*"

# Names that requests may use: folder names, also Hugging Face's with slashes
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(/[A-Za-z0-9][A-Za-z0-9._+-]*)*")
_LONGEST_NAME = 128


def is_name(name: str) -> bool:
    """Whether a model, alias or adapter may have this name; it is safe as a relative path."""
    return len(name) <= _LONGEST_NAME and _NAME.fullmatch(name) is not None


def _checked_name(name: str) -> str:
    if not is_name(name):
        raise ValueError(
            "a name may contain letters, digits and . _ + -, and each part between slashes must "
            "start with a letter or digit"
        )
    return name


_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")  # OpenAI's


def _checked_effort(value: str) -> str:
    if value not in _EFFORTS:
        raise ValueError(f"'{value}' is not an effort; use one of {', '.join(_EFFORTS)}")
    return value


def _checked_capability(name: str) -> str:
    if name not in Capabilities.model_fields:
        raise ValueError(
            f"unknown capability '{name}'{did_you_mean(name, Capabilities.model_fields)}"
        )
    return name


def _items(value: Any) -> Any:
    """Split a setting's comma-separated text; the file has a list."""
    if not isinstance(value, str):
        return value
    return [item.strip() for item in value.split(",") if item.strip()]


def _pairs(value: Any) -> Any:
    """Parse `name=value,...` of a setting; the file has a mapping."""
    if not isinstance(value, str):
        return value
    pairs = [item.strip().partition("=") for item in value.split(",")]
    if not all(name and found and text for name, found, text in pairs):
        raise ValueError(f"'{value}' must have the form NAME=PATH,...")
    if len({name for name, _, _ in pairs}) < len(pairs):
        raise ValueError(f"'{value}' contains a name twice")
    return {name: text for name, _, text in pairs}


Name = Annotated[str, AfterValidator(_checked_name)]
Capability = Annotated[str, AfterValidator(_checked_capability)]
Effort = Annotated[str, AfterValidator(_checked_effort)]
Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Response timeouts of an engine in seconds (0 disables) and its maximum restarts."""

    first_token_s: float = 0.0
    inter_token_s: float = 0.0
    restarts: int = 0  # within the window
    window_s: float = 600.0


class ModelOptions(BaseModel):
    """Without a value, the model's own files decide, or there is no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    description: str | None = Field(default=None, description="Description shown by /v1/models.")
    aliases: Annotated[tuple[Name, ...], BeforeValidator(_items)] = Field(
        default=(), description="Additional names that requests may use for the model."
    )

    contract: str | None = Field(
        default=None,
        description="Tensor contract; by default detected from the model's inputs and outputs.",
    )
    tensors: dict[str, str] = Field(
        default={},
        description="Mapping from our tensor names to the model's, for the contract `python`.",
    )
    labels: Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(_items)] | None = Field(
        default=None,
        description="Names of a classifier's classes, in the order of its scores; by default from "
        "`label_filename` of its output, or from its engine.",
    )
    moderation: ModerationOptions | None = Field(
        default=None,
        description="Labels of a classifier as categories of `/v1/moderations`, and the thresholds "
        "from which they are flagged.",
    )

    tokenizer: str | None = Field(
        default=None,
        description="Tokenizer folder; a path that starts with a dot is relative to the model's "
        "folder.",
    )
    use_fastokens: bool = Field(
        default=True,
        description="Tokenize with fastokens if it finds the same tokens: ten times as fast, for "
        "about 1 KB of memory per token of the vocabulary, and as much for each thread that "
        "tokenizes.",
    )
    chat_template: str | None = Field(
        default=None,
        description="File or built-in name of a chat template; a path that starts with a dot is "
        "relative to the model's folder.",
    )
    allow_special_tokens: bool = Field(
        default=False,
        description="Interpret special tokens in chat texts; by default they are plain text.",
    )
    tool_call_parser: str | None = Field(default=None, description="Parser of tool calls.")
    reasoning_parser: str | None = Field(default=None, description="Parser of reasoning.")
    reasoning_effort_map: Annotated[dict[Effort, Effort], BeforeValidator(_pairs)] = Field(
        default={},
        description="Values of `reasoning_effort` and the values that the chat template gets "
        "instead, such as `{high: max}`. As a setting: `NAME=VALUE,...`.",
    )

    max_model_len: Positive | None = Field(
        default=None, description="Maximum tokens of prompt and output together."
    )
    max_output_tokens: Positive | None = Field(
        default=None,
        description="Maximum output tokens of one choice. A request for more is rejected.",
    )
    max_concurrent_requests: Positive | None = Field(
        default=None, description="Maximum requests running in the model."
    )
    max_queue_size: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Maximum requests waiting in the model's queue."
    )
    queue_timeout_s: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Seconds that a request may wait in the queue."
    )

    first_token_timeout_s: Seconds | None = Field(
        default=None, description="Seconds until the first response to a request; 0 disables."
    )
    inter_token_timeout_s: Seconds | None = Field(
        default=None, description="Seconds between two responses to a request; 0 disables."
    )
    engine_max_restarts: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Maximum engine restarts within the window; 0 disables."
    )

    adapters: Annotated[dict[str, str], BeforeValidator(_pairs)] = Field(
        default={},
        description="LoRA adapter names and their folders, relative to the model's folder. As a "
        "setting: `NAME=FOLDER,...`.",
    )
    adapter_folder: str | None = Field(
        default=None, description="Folder whose subfolders are LoRA adapters."
    )

    prompt_embedding_tables: Annotated[dict[Name, str], BeforeValidator(_pairs)] = Field(
        default={},
        description="Names of TensorRT-LLM prompt embedding tables and their `.npy` files, "
        "relative to the model's folder. As a setting: `NAME=FILE,...`.",
    )

    ensemble: Name | None = Field(
        default=None, description="Model that calls this one. Requests cannot name this model then."
    )
    expose: bool = Field(
        default=False,
        description="Let requests name the model although it is a step of an ensemble.",
    )
    load_on_demand: bool = Field(
        default=False,
        description="Load the model at the first request for it instead of at start. No effect in "
        "mode `poll`.",
    )
    capabilities: Annotated[tuple[Capability, ...], BeforeValidator(_items)] = Field(
        default=(),
        description="Capabilities that /v1/models lists while a model that loads on demand is not "
        "loaded, such as `chat, images`.",
    )
    memory_bytes: Positive | None = Field(
        default=None, description="Memory that the model uses, for load on demand."
    )
    idle_unload_s: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="Seconds without a request after which the model is unloaded; a request loads "
        "it again. No effect in mode `poll`.",
    )

    idle_sleep_s: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="Seconds without a request after which the model sleeps; a request wakes it.",
    )
    sleep_level: Annotated[int, Field(ge=1, le=2)] | None = Field(
        default=None,
        description="Level of sleep, also to make room: 1 keeps the weights in main memory, 2 "
        "drops them; 1 by default.",
    )

    @property
    def sleeps(self) -> bool:
        """Whether the model may sleep without a client's request."""
        return self.idle_sleep_s is not None or self.sleep_level is not None

    @property
    def is_loaded_by_requests(self) -> bool:
        """Whether a request loads the model if it is not loaded."""
        return self.load_on_demand or self.idle_unload_s is not None

    @property
    def known_capabilities(self) -> frozenset[str]:
        """Capabilities of a model that is not loaded."""
        moderates = ("classification", "moderation") if self.moderation is not None else ()
        return frozenset((*self.capabilities, *moderates))

    @property
    def concurrency_limits(self) -> ConcurrencyLimits:
        return ConcurrencyLimits(
            self.max_concurrent_requests, self.max_queue_size, self.queue_timeout_s
        )

    def in_folder(self, folder: Path) -> "ModelOptions":
        """Resolve paths that start with a dot, and those of tables, against the model's folder."""
        paths = {"tokenizer": self.tokenizer, "chat_template": self.chat_template}
        within = {
            name: str(folder / path)
            for name, path in paths.items()
            if path is not None and path.startswith(".")
        }
        tables = {name: str(folder / path) for name, path in self.prompt_embedding_tables.items()}
        return self.model_copy(
            update=within | ({"prompt_embedding_tables": tables} if tables else {})
        )

    def engine_limits(self, general: EngineLimits) -> EngineLimits:
        """The model's own limits, completed by the `general` ones."""
        first_s, between_s = self.first_token_timeout_s, self.inter_token_timeout_s
        return EngineLimits(
            first_token_s=general.first_token_s if first_s is None else first_s,
            inter_token_s=general.inter_token_s if between_s is None else between_s,
            restarts=general.restarts
            if self.engine_max_restarts is None
            else self.engine_max_restarts,
            window_s=general.window_s,
        )

    def over(self, below: "ModelOptions") -> "ModelOptions":
        """`below`, overridden by the options set here."""
        own = {name: getattr(self, name) for name in self.model_fields_set}
        return below.model_copy(update=own)


def read(folder: Path | None) -> ModelOptions:
    """Read the options next to a model's config.pbtxt; defaults if there is no file.

    Raises ModelUnavailable with the file and the reason if it is invalid.
    """
    if folder is None:
        return ModelOptions()
    path = folder / FILE
    try:
        return _parsed(path.read_text(encoding="utf-8"), path).in_folder(folder)
    except FileNotFoundError:
        return ModelOptions()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelUnavailable(f"{path}: {error}") from error


def of_model(name: str, folder: Path | None, settings: Mapping[str, ModelOptions]) -> ModelOptions:
    """Merge the options of a model: its settings override its file, which overrides `*`."""
    every, own = (settings.get(each, ModelOptions()) for each in (EVERY_MODEL, name))
    return own.over(read(folder).over(every))


def on_demand(
    repositories: Iterable[Path], settings: Mapping[str, ModelOptions]
) -> dict[str, ModelOptions]:
    """The options of the models that a request loads, by name. An invalid file of options counts as
    none: the model's load reports it.
    """
    found = {}
    existing = (path for path in repositories if path.is_dir())
    for folder in (each for path in existing for each in path.iterdir() if each.is_dir()):
        try:
            options = of_model(folder.name, folder, settings)
        except ModelUnavailable:
            continue
        if options.is_loaded_by_requests:
            found[folder.name] = options
    return found


def by_model(
    options: Mapping[str, ModelOptions], **settings: Mapping[str, str]
) -> dict[str, ModelOptions]:
    """Merge `options` with settings that set one option each; the settings win."""
    joined = dict(options)
    for option, values in settings.items():
        for name, value in values.items():
            own = ModelOptions.model_validate({option: value})
            joined[name] = own.over(joined.get(name, ModelOptions()))
    return joined


def _parsed(text: str, path: Path) -> ModelOptions:
    try:
        values = strict_yaml.parse(text)
    except strict_yaml.InvalidYaml as error:
        raise ModelUnavailable(f"{path}: {error}") from error
    if values is None:
        return ModelOptions()
    if not isinstance(values, dict):
        raise ModelUnavailable(f"{path}: must contain options as 'name: value' lines")
    try:
        return ModelOptions.model_validate(values)
    except ValidationError as error:
        raise ModelUnavailable(f"{path}: {_first_problem(error)}") from error


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    name = ".".join(map(str, problem["loc"]))
    if problem["type"] != "extra_forbidden":
        return f"{name}: {strict_yaml.describe_problem(problem)}"
    return f"unknown option '{name}'{did_you_mean(name, ModelOptions.model_fields)}"
