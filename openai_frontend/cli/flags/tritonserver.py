"""The flags of tritonserver that are not options of `serve`, or have another form there."""

from collections.abc import Sequence

from openai_frontend.cli.flags.rules import (
    Reading,
    Rule,
    instead,
    not_needed,
    only_on,
    renamed,
    switch,
)
from openai_frontend.config.grpc_options import ALL_OPTIONS
from openai_frontend.config.removed_settings import TRITON_OPTION_OF
from openai_frontend.config.triton_options import BOOLEAN, TRITON_OPTIONS, TritonOption

_TRACES = "traces go to --otlp-endpoint http://HOST:4318 (docs/tracing-and-logs.md)"
_THREADS = "one event loop handles all connections"


def scoped(text: str) -> str:
    """NAME,KEY=VALUE as NAME:KEY=VALUE."""
    scope, comma, setting = text.partition(",")
    return f"{scope}:{setting}" if comma and scope and "=" not in scope else text


def _option(name: str, option: TritonOption) -> Rule:
    def assignment(text: str) -> str:
        option.kind.parse(text)  # raises ValueError
        return f"{name}={text}"

    rule = renamed("--triton-option", assignment)
    if option.kind is not BOOLEAN:
        return rule
    return Rule("switch", lambda values: rule.read(values or ["true"]))


_OPTIONS = {name: _option(name, option) for name, option in ALL_OPTIONS.items()}


def _by_port(*words: str) -> Rule:
    """A switch of a protocol: our options give it tritonserver's port."""

    def read(values: Sequence[str]) -> Reading:
        try:
            (is_on,) = BOOLEAN.parse(values[0] if values else "true")
        except ValueError as error:
            return Reading(invalid=str(error))
        return Reading(words) if is_on else Reading()

    return Rule("switch", read, is_default=True)


_HOSTED = _by_port("--port", "8080")  # the paths of SageMaker and Vertex AI are always served
_ALL_PORTS = ("--port", "8000", "--triton-option", "grpc-port=8001", "--metrics-port", "8002")


def _trace_rate(text: str) -> str:
    """One of N requests as a share."""
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"'{text}' is not a whole number")
    return str(1 / int(text)) if int(text) else "0"


def _rate(values: Sequence[str]) -> Reading:
    """The mode decides which of both applies."""
    ratio = renamed("--trace-sample-ratio", _trace_rate).read(values)
    every = _OPTIONS["trace-rate"].read(values)
    return Reading(ratio.words + every.words, invalid=ratio.invalid or every.invalid)


_RATE = Rule("one", _rate)
_TRACE_SETTINGS = {
    "mode": Rule("one", lambda values: _OPTIONS["trace-mode"].read([values[0].lower()])),
    "triton,file": _OPTIONS["trace-file"],
    "triton,log-frequency": _OPTIONS["trace-log-frequency"],
    "opentelemetry,url": renamed(
        "--otlp-endpoint", lambda url: url.rstrip("/").removesuffix("/v1/traces")
    ),
    "rate": _RATE,
    "level": _OPTIONS["trace-level"],
    "count": _OPTIONS["trace-count"],
}


def _trace_config(values: Sequence[str]) -> Reading:
    """KEY=VALUE, or MODE,KEY=VALUE."""
    key, _, value = values[0].partition("=")
    rule = _TRACE_SETTINGS.get(key)
    return Reading(problem=f"'{key}': {_TRACES}") if rule is None else rule.read([value])


def _log_format(values: Sequence[str]) -> Reading:
    """tritonserver's flag is the format of the core's log, and ours that of all lines."""
    if values[0] in ("text", "json"):
        return Reading(("--log-format", values[0]))
    return _OPTIONS["log-format"].read(values)


def _openai_restricted(values: Sequence[str]) -> Reading:
    """NVIDIA's OpenAI frontend takes groups, header and value; KEY=VALUE is our option's form."""
    words = values[0].split(" ", 2) if len(values) == 1 else values
    if len(words) == 3:
        words = [f"{words[0]}:{words[1]}={words[2]}"]
    return _OPTIONS["openai-restricted-api"].read(["".join(words)])


def _cache_size(text: str) -> str:
    return f"local:size={text}"


FLAGS: dict[str, Rule] = {
    **{f"--{name}": rule for name, rule in _OPTIONS.items()},
    "--log-format": Rule("one", _log_format),
    # removed options of `serve`
    **{
        f"--{flag}": instead(_OPTIONS[name])
        for setting, name in TRITON_OPTION_OF.items()
        if (flag := setting.replace("_", "-")) not in TRITON_OPTIONS
    },
    # models
    "--model-store": renamed("--model-repository"),
    "--repository-poll-secs": renamed("--repository-poll-s"),
    "--disable-auto-complete-config": Rule(
        "none", lambda _: _OPTIONS["strict-model-config"].read(["true"])
    ),
    "--exit-timeout-secs": renamed("--exit-timeout-s"),
    # HTTP
    "--allow-http": only_on("HTTP serves health, metrics and every API except gRPC"),
    "--http-address": renamed("--host"),
    "--http-port": renamed("--port"),
    "--http-max-input-size": renamed("--max-body-bytes"),
    "--http-thread-count": not_needed(_THREADS, "one"),
    "--openai-restricted-api": Rule("three", _openai_restricted),
    # metrics
    "--allow-metrics": switch("--metrics"),
    "--metrics-config": renamed("--metrics-config", scoped),
    # traces
    "--trace-config": Rule("one", _trace_config),
    "--trace-rate": _RATE,
    # backends and caches
    "--backend-config": renamed("--backend-config", scoped),
    "--cache-config": renamed("--cache-config", scoped),
    "--response-cache-byte-size": renamed("--cache-config", _cache_size),
    # other protocols
    "--allow-grpc": _by_port("--triton-option", "grpc-port=8001"),
    "--grpc-infer-thread-count": not_needed(_THREADS, "one"),
    "--grpc-infer-allocation-pool-size": not_needed("messages are allocated as needed", "one"),
    "--grpc-max-response-pool-size": not_needed("messages are allocated as needed", "one"),
    # all ports of tritonserver
    "--triton-ports": Rule("none", lambda _: Reading(_ALL_PORTS), is_default=True),
    # hosting platforms: their paths are on --port
    "--allow-sagemaker": _HOSTED,
    "--sagemaker-port": renamed("--port"),
    "--sagemaker-safe-port-range": not_needed("SageMaker's paths are on --port", "one"),
    "--sagemaker-thread-count": not_needed(_THREADS, "one"),
    "--allow-vertex-ai": _HOSTED,
    "--vertex-ai-port": renamed("--port"),
    "--vertex-ai-thread-count": not_needed(_THREADS, "one"),
}  # fmt: skip
