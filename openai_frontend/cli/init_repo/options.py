"""The options of `init-repo`, validated."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai_frontend.errors import did_you_mean

KINDS = ("inprocess", "vllm", "llmapi")
DTYPES = ("auto", "float16", "bfloat16", "float32")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_HUB_NAME = re.compile(rf"(?:{_NAME.pattern}/)?{_NAME.pattern}")

_WEIGHTS = ("config.json", "tokenizer.json", "tokenizer_config.json")

# Options that only some kinds support
_KINDS_OF: Mapping[str, Sequence[str]] = {
    "nvidia_models": ("llmapi",),
    "instances": ("vllm", "llmapi"),
    "decoupled": ("llmapi",),
}


class InvalidOption(Exception):
    """The message is one line that names the option."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"{option}: {reason}")


class ModelExists(InvalidOption):
    def __init__(self, folder: Path) -> None:
        Exception.__init__(self, f"{folder} already exists; --force overwrites its files")


@dataclass(frozen=True, kw_only=True)
class RepositoryOptions:
    model: str  # an absolute path, or a name on a hub (not checked)
    folder: Path | None  # of the weights; None if they are on a hub
    kind: str  # one of KINDS
    repository: Path
    name: str
    tokenizer: str  # an absolute path, or a name on a hub
    max_model_len: int | None = None
    tensor_parallel_size: int = 1
    dtype: str | None = None  # None: chosen by the backend
    gpu_memory_utilization: float | None = None
    max_batch_size: int | None = None
    instances: int = 1
    decoupled: bool = True
    loras: Mapping[str, Path] = field(default_factory=dict)  # adapter -> its folder, absolute
    nvidia_models: Path | None = None
    force: bool = False
    served_names: Sequence[str] = ()  # `name` and its aliases; empty by default
    engine_arguments: Mapping[str, Any] = field(
        default_factory=dict
    )  # further engine arguments of vLLM

    def tokenizer_folder(self) -> str | None:
        """The tokenizer's folder, if it is on this machine."""
        return self.tokenizer if Path(self.tokenizer).is_absolute() else None


def parse_options(arguments: Mapping[str, Any]) -> RepositoryOptions:
    """From argparse's values; missing options are None. Raises InvalidOption."""
    values = {name: value for name, value in arguments.items() if value is not None}
    kind = _one_of("--kind", values.pop("kind", "inprocess"), KINDS)
    _refuse_unsupported(kind, values)
    model, folder = _weights("MODEL", values.pop("model"))
    tokenizer = values.pop("tokenizer", None)
    if "dtype" in values:
        _one_of("--dtype", values["dtype"], DTYPES)
    if "nvidia_models" in values:
        values["nvidia_models"] = _folder("--nvidia-models", values["nvidia_models"])
    return RepositoryOptions(
        model=model,
        folder=folder,
        kind=kind,
        tokenizer=model if tokenizer is None else _weights("--tokenizer", tokenizer)[0],
        name=model_name("--name", values.pop("name", None) or Path(model).name),
        loras=dict(_lora(text) for text in values.pop("lora", ())),
        **_in_bounds(values),
    )


def expanded(path: str) -> Path:
    """Expands `~` if the home folder is known."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def holds_weights(folder: Path) -> bool:
    """Whether the folder contains a model in Hugging Face's format."""
    return any((folder / name).is_file() for name in _WEIGHTS)


def is_hub_name(name: str) -> bool:
    """Whether the name is valid on Hugging Face's hub; otherwise it is a path."""
    return _HUB_NAME.fullmatch(name) is not None


def mistyped_folder(model: str) -> str | None:
    """A warning about a hub name that is probably a missing folder; else None."""
    path = Path(model)
    if path.is_dir() or ("/" in model and not path.parent.is_dir()):
        return None
    return f"folder '{model}' does not exist; using it as a name on Hugging Face's hub"


def _refuse_unsupported(kind: str, values: Mapping[str, Any]) -> None:
    for option, kinds in _KINDS_OF.items():
        if option in values and kind not in kinds:
            raise InvalidOption(
                _flag(option), f"only valid for --kind {' or '.join(kinds)}, not {kind}"
            )


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")


def _one_of(option: str, value: str, known: Sequence[str]) -> str:
    if value in known:
        return value
    if guess := did_you_mean(value, known):
        raise InvalidOption(option, f"unknown value '{value}'{guess}")
    raise InvalidOption(option, f"'{value}' is not one of {', '.join(known)}")


def _in_bounds(values: Mapping[str, Any]) -> Mapping[str, Any]:
    for option in ("max_model_len", "tensor_parallel_size", "max_batch_size", "instances"):
        if values.get(option, 1) < 1:
            raise InvalidOption(_flag(option), f"must be at least 1, not {values[option]}")
    if not 0 < values.get("gpu_memory_utilization", 1) <= 1:
        share = values["gpu_memory_utilization"]
        raise InvalidOption("--gpu-memory-utilization", f"must be above 0 and at most 1: {share}")
    return values


def model_name(option: str, name: str) -> str:
    """The name, if it is valid for a model's folder. Raises InvalidOption."""
    if _NAME.fullmatch(name):
        return name
    raise InvalidOption(
        option,
        f"invalid model name '{name}': use at most 128 letters, digits, '.', '_' and '-', and "
        "begin with a letter or digit",
    )


def _weights(option: str, model: str) -> tuple[str, Path | None]:
    """An existing folder, or else a name on a hub."""
    path = expanded(model)
    if path.is_dir():
        if not holds_weights(path):
            raise InvalidOption(option, f"{model} contains none of {', '.join(_WEIGHTS)}")
        return str(path.resolve()), path.resolve()
    if model.startswith((".", "/", "~")) or not is_hub_name(model):
        raise InvalidOption(option, f"{model} is neither a folder nor a name on a hub")
    return model, None


def _folder(option: str, path: Path) -> Path:
    if not path.is_dir():
        raise InvalidOption(option, f"{path} is not a folder")
    return path.resolve()


def _lora(text: str) -> tuple[str, Path]:
    name, found, path = text.partition("=")
    if not (name and found and path):
        raise InvalidOption("--lora", f"'{text}' is not of the form NAME=PATH")
    return model_name("--lora", name), _folder("--lora", expanded(path))


def read_json(option: str, path: Path) -> dict[str, Any]:
    """A JSON file that an option refers to. Raises InvalidOption if it is invalid."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidOption(option, f"{path}: {error}") from None
    if not isinstance(found, dict):
        raise InvalidOption(option, f"{path}: not a JSON object")
    return found
