"""What an operator says of one model: `openai_frontend.yaml` beside its config.pbtxt, or settings.

Knows no Triton and no tokenizer: only names, paths and numbers.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from openai_frontend.admission.limits import ConcurrencyLimits
from openai_frontend.config import strict_yaml, validation
from openai_frontend.errors import ModelUnavailable

FILE = "openai_frontend.yaml"

EVERY_MODEL = "*"

# What requests may name: a folder's name, also Hugging Face's with one slash or more
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(/[A-Za-z0-9][A-Za-z0-9._+-]*)*")
_LONGEST_NAME = 128


def is_name(name: str) -> bool:
    """Whether a model, an alias or an adapter may have this name: it leads nowhere as a path."""
    return len(name) <= _LONGEST_NAME and _NAME.fullmatch(name) is not None


def _checked_name(name: str) -> str:
    if not is_name(name):
        raise ValueError(
            "a name begins with a letter or digit, as each part after a slash does, and has those "
            "and . _ + - alone"
        )
    return name


def _items(value: Any) -> Any:
    """A setting's text has commas where the file has a list."""
    if not isinstance(value, str):
        return value
    return [item.strip() for item in value.split(",") if item.strip()]


def _pairs(value: Any) -> Any:
    """A setting's text has `name=value` where the file has a mapping."""
    if not isinstance(value, str):
        return value
    pairs = [item.strip().partition("=") for item in value.split(",")]
    if not all(name and found and text for name, found, text in pairs):
        raise ValueError(f"'{value}' is not of the form NAME=PATH,...")
    if len({name for name, _, _ in pairs}) < len(pairs):
        raise ValueError(f"'{value}' has two of one name")
    return {name: text for name, _, text in pairs}


Name = Annotated[str, AfterValidator(_checked_name)]
Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """How long an engine may be silent (seconds; 0: for ever), how often it is started again."""

    first_token_s: float = 0.0
    inter_token_s: float = 0.0
    restarts: int = 0  # within the window
    window_s: float = 600.0


class ModelOptions(BaseModel):
    """Every field may be left out: then the model's own files decide, or nothing is limited."""

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

    tokenizer: str | None = Field(
        default=None,
        description="Tokenizer folder; a path that starts with a dot is relative to the model's "
        "folder.",
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
    memory_bytes: Positive | None = Field(
        default=None, description="Memory that the model uses, for load_on_demand."
    )

    @property
    def concurrency_limits(self) -> ConcurrencyLimits:
        """What is said of requests at work in the model, and of those that wait."""
        return ConcurrencyLimits(
            self.max_concurrent_requests, self.max_queue_size, self.queue_timeout_s
        )

    def in_folder(self, folder: Path) -> "ModelOptions":
        """With the paths that begin with a dot, and those of tables, where they lie."""
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
        """The model's own where it has them."""
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
        """These options where they are given, else those of `below`."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return below.model_copy(update=given)


def read(folder: Path | None) -> ModelOptions:
    """The options beside a model's config.pbtxt; none where there is no file.

    Raises ModelUnavailable with the file and the reason where it cannot be used.
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
    """What holds for a model: the settings of its name, then its file, then those of `*`."""
    every, own = (settings.get(each, ModelOptions()) for each in (EVERY_MODEL, name))
    return own.over(read(folder).over(every))


def by_model(
    options: Mapping[str, ModelOptions], **settings: Mapping[str, str]
) -> dict[str, ModelOptions]:
    """Options of models, and settings that give models one option each, which go before them."""
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
        raise ModelUnavailable(f"{path}: expected options as 'name: value' lines")
    try:
        return ModelOptions.model_validate(values)
    except ValidationError as error:
        raise ModelUnavailable(f"{path}: {_first_problem(error)}") from error


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    name = ".".join(map(str, problem["loc"]))
    if problem["type"] != "extra_forbidden":
        return f"{name}: {validation.describe(problem)}"
    close = get_close_matches(name, ModelOptions.model_fields, n=1)
    return f"unknown option '{name}'" + (f"; did you mean '{close[0]}'?" if close else "")
