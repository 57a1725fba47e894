"""Options of Triton's core that the gateway only passes on, named as tritonserver's flags.

A row serves the setting `triton_option`, the flag of `serve`, docs/settings.md and the core.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import inf
from pathlib import Path
from typing import Any

# tritonserver's spellings
BOOLEANS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}

OptionTexts = Mapping[str, Sequence[str]]  # name -> values in tritonserver's syntax

_MOST_UINT32 = 2**32 - 1
_MOST_UINT64 = 2**64 - 1
_GPU = 2  # the C API's number of this kind of instance group


@dataclass(frozen=True, slots=True)
class ValueKind:
    """A syntax of tritonserver."""

    form: str
    parse: Callable[[str], tuple[Any, ...]]  # the setter's arguments; raises ValueError


def _boolean(text: str) -> tuple[bool]:
    if text.lower() not in BOOLEANS:
        raise ValueError(f"'{text}' is not true or false")
    return (BOOLEANS[text.lower()],)


def _level(text: str) -> tuple[int]:
    """Older versions of tritonserver have a boolean."""
    if text.isdecimal():
        return _whole_number(text, 0, 2**31 - 1)
    if text.lower() not in BOOLEANS:
        raise ValueError(f"'{text}' is neither a level nor true or false")
    return (int(BOOLEANS[text.lower()]),)


def _whole_number(text: str, least: int, most: int) -> tuple[int]:
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"'{text}' is not a whole number") from None
    if not least <= number <= most:
        raise ValueError(f"'{text}' must be from {least} to {most}")
    return (number,)


def _number(text: str, most: float) -> tuple[float]:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"'{text}' is not a number") from None
    if not 0 <= number <= most or number == inf:
        raise ValueError(f"'{text}' must be from 0 to {most:g}")
    return (number,)


def _by_device(text: str, parse: Callable[[str], tuple[Any, ...]]) -> tuple[Any, ...]:
    device, colon, value = text.partition(":")
    if not (device and colon and value):
        raise ValueError(f"'{text}' must have the form DEVICE:NUMBER")
    return (*_whole_number(device, 0, 2**31 - 1), *parse(value))


def _fraction_of_gpu(text: str) -> tuple[Any, ...]:
    return (_GPU, *_by_device(text, lambda value: _number(value, 1.0)))


def _policy(text: str) -> tuple[str, str, str]:
    """A colon is the separator too: in the environment, a comma separates values."""
    scoped, equals, value = text.partition("=")
    scope, _, key = scoped.replace(",", ":", 1).partition(":")
    if not (scope and key and equals and value):
        raise ValueError(f"'{text}' must have the form NAME:KEY=VALUE")
    return scope, key, value


def _resource(text: str) -> tuple[str, int, int]:
    """Without a device, the resource is of every device (-1)."""
    name, colon, rest = text.partition(":")
    count, _, device = rest.partition(":")
    if not (name and colon and count):
        raise ValueError(f"'{text}' must have the form NAME:COUNT[:DEVICE]")
    (copies,) = _whole_number(count, 0, _MOST_UINT32)
    (number,) = _whole_number(device or "-1", -1, 2**31 - 1)
    return name, copies, number


def whole_number(least: int = 0, most: int = _MOST_UINT32) -> ValueKind:
    return ValueKind("NUMBER", lambda text: _whole_number(text, least, most))


def one_of(numbers: Mapping[str, int]) -> ValueKind:
    """Words, with the C API's number of each."""
    form = " or ".join(numbers)

    def parse(text: str) -> tuple[int]:
        if text not in numbers:
            raise ValueError(f"'{text}' must be {form}")
        return (numbers[text],)

    return ValueKind(form, parse)


TEXT = ValueKind("TEXT", lambda text: (text,))
PATH = ValueKind("PATH", lambda text: (text,))
BOOLEAN = ValueKind("true or false", _boolean)
_BYTES_OF_GPU = ValueKind(
    "DEVICE:NUMBER",
    lambda text: _by_device(text, lambda value: _whole_number(value, 0, _MOST_UINT64)),
)


@dataclass(frozen=True, slots=True)
class TritonOption:
    setter: str  # method of the core's options
    kind: ValueKind
    help: str
    default: str | None = None  # None: the core's
    repeats: bool = False


TRITON_OPTIONS: Mapping[str, TritonOption] = {
    "id": TritonOption(
        "server_id", TEXT, "Server name that Triton reports.", default="openai-frontend"
    ),
    # models
    "strict-model-config": TritonOption(
        "strict_model_config",
        BOOLEAN,
        "Reject models whose config.pbtxt is incomplete.",
        default="false",
    ),
    "model-config-name": TritonOption(
        "model_config_name",
        TEXT,
        "Name of the config to use from each model's `configs` folder.",
    ),
    "model-namespacing": TritonOption(
        "model_namespacing",
        BOOLEAN,
        "Allow the same model name in several repositories.",
        default="false",
    ),
    "model-load-thread-count": TritonOption(
        "model_load_thread_count", whole_number(1), "Maximum models that load in parallel."
    ),
    # The core initializes neither this one nor enable-peer-access: without a value, a failing
    # model would be retried endlessly.
    "model-load-retry-count": TritonOption(
        "model_load_retry_count",
        whole_number(),
        "Retries for a model that fails to load.",
        default="0",
    ),
    "model-load-gpu-limit": TritonOption(
        "model_load_device_limit",
        ValueKind("DEVICE:NUMBER", _fraction_of_gpu),
        "Fraction (0 to 1) of a GPU's memory above which no model is loaded.",
        repeats=True,
    ),
    "repoagent-directory": TritonOption(
        "repo_agent_directory", PATH, "Folder with Triton's repository agents."
    ),
    # devices and memory
    "enable-peer-access": TritonOption(
        "enable_peer_access", BOOLEAN, "Let GPUs access each other's memory.", default="true"
    ),
    "min-supported-compute-capability": TritonOption(
        "min_supported_compute_capability",
        ValueKind("NUMBER", lambda text: _number(text, inf)),
        "Ignore GPUs below this CUDA compute capability.",
    ),
    "host-policy": TritonOption(
        "host_policy",
        ValueKind("NAME:KEY=VALUE", _policy),
        "Setting of a host policy, such as CPU cores or a NUMA node.",
        repeats=True,
    ),
    "pinned-memory-pool-byte-size": TritonOption(
        "pinned_memory_pool_bytes",
        whole_number(most=_MOST_UINT64),
        "Bytes of pinned host memory for GPU transfers.",
    ),
    "cuda-memory-pool-byte-size": TritonOption(
        "cuda_memory_pool_bytes",
        _BYTES_OF_GPU,
        "Bytes of Triton's memory pool on a GPU.",
        repeats=True,
    ),
    "cuda-virtual-address-size": TritonOption(
        "cuda_virtual_address_bytes",
        _BYTES_OF_GPU,
        "Bytes of virtual address space on a GPU for growable state.",
        repeats=True,
    ),
    "buffer-manager-thread-count": TritonOption(
        "buffer_manager_thread_count", whole_number(), "Threads that copy tensors."
    ),
    # rate limiter and response cache
    "rate-limit": TritonOption(
        "rate_limiter_mode",
        one_of({"off": 0, "execution_count": 1}),
        "How model instances share the resources of `rate-limit-resource`.",
    ),
    "rate-limit-resource": TritonOption(
        "rate_limiter_resource",
        ValueKind("NAME:COUNT[:DEVICE]", _resource),
        "Number of copies of a rate limiter resource.",
        repeats=True,
    ),
    "cache-directory": TritonOption(
        "cache_directory",
        PATH,
        "Folder with Triton's cache libraries. Default: the core's, in the container images and "
        "the wheel.",
    ),
    # log
    "log-info": TritonOption("log_info", BOOLEAN, "Log Triton's info messages.", default="false"),
    "log-warning": TritonOption("log_warn", BOOLEAN, "Log Triton's warnings.", default="true"),
    "log-error": TritonOption("log_error", BOOLEAN, "Log Triton's errors.", default="true"),
    "log-verbose": TritonOption(
        "log_verbose",
        ValueKind("NUMBER", _level),
        "Level of Triton's verbose log; 0 disables.",
        default="0",
    ),
    "log-file": TritonOption("log_file", PATH, "File for Triton's log instead of stderr."),
    "log-format": TritonOption(
        "log_format", one_of({"default": 0, "ISO8601": 1}), "Time format of Triton's log."
    ),
    # metrics
    "allow-gpu-metrics": TritonOption(
        "gpu_metrics", BOOLEAN, "Collect GPU metrics; off without a GPU, unless set."
    ),
    "allow-cpu-metrics": TritonOption("cpu_metrics", BOOLEAN, "Collect CPU metrics."),
    "metrics-interval-ms": TritonOption(
        "metrics_interval_ms",
        whole_number(1, _MOST_UINT64),
        "Milliseconds within which the core samples GPU and CPU metrics twice.",
        # Its 2000 take half of the CPU time of an idle gateway
        default="10000",
    ),
}


def arguments(
    name: str, text: str, options: Mapping[str, TritonOption] = TRITON_OPTIONS
) -> tuple[Any, ...]:
    """The arguments of the option's setter. Raises ValueError that names the option."""
    option = options.get(name)
    if option is None:
        close = " or ".join(map(repr, get_close_matches(name, options, n=3)))
        hint = f"did you mean {close}?" if close else "docs/settings.md lists the options"
        raise ValueError(f"unknown option '{name}'; {hint}")
    try:
        return option.kind.parse(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def with_defaults(texts: OptionTexts) -> OptionTexts:
    """Includes the gateway's defaults."""
    defaults = {
        name: (option.default,)
        for name, option in TRITON_OPTIONS.items()
        if option.default is not None
    }
    return {**defaults, **texts}


@dataclass(frozen=True, slots=True)
class CoreLog:
    """The options for the core's log, which the gateway reads and shows too."""

    file: Path | None
    info: bool
    warning: bool
    error: bool
    verbose: int
    format: str


def core_log(given: OptionTexts) -> CoreLog:
    texts = with_defaults(given)

    def value(name: str) -> Any:
        return arguments(name, texts[name][0])[0]

    return CoreLog(
        file=Path(texts["log-file"][0]) if "log-file" in texts else None,
        info=value("log-info"),
        warning=value("log-warning"),
        error=value("log-error"),
        verbose=value("log-verbose"),
        format=texts["log-format"][0] if "log-format" in texts else "default",
    )
