"""The flags of tritonserver that are not options of `serve`, or have another form there."""

from collections.abc import Sequence

from openai_frontend.cli.flags.rules import (
    Reading,
    Rule,
    instead,
    not_needed,
    only_off,
    only_on,
    refused,
    renamed,
    switch,
)
from openai_frontend.config.grpc_options import ALL_OPTIONS
from openai_frontend.config.removed_settings import TRITON_OPTION_OF
from openai_frontend.config.triton_options import BOOLEAN, TRITON_OPTIONS, TritonOption

_GRPC_TLS = "gRPC uses the certificate of HTTP: --tls-certificate, --tls-key, --tls-client-ca"
_TRACES = "use --otlp-endpoint http://HOST:4318 (docs/tracing-and-logs.md)"
_SAGEMAKER = "SageMaker's port is not served, only GET /ping on --port"
_VERTEX = "Vertex AI's port is not served; use the paths of --port"
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


def _by_port(option: str, port: str) -> Rule:
    """A switch of a protocol, which is on if it has a port."""
    return Rule("switch", lambda values: _switched(option, port, values))


def _switched(option: str, port: str, values: Sequence[str]) -> Reading:
    try:
        (is_on,) = BOOLEAN.parse(values[0] if values else "true")
    except ValueError as error:
        return Reading(problem=str(error))
    return Reading(("--triton-option", f"{option}={port}")) if is_on else Reading()


def _log_format(values: Sequence[str]) -> Reading:
    """tritonserver's flag is the format of the core's log, and ours that of all lines."""
    if values[0] in ("text", "json"):
        return Reading(("--log-format", values[0]))
    return _OPTIONS["log-format"].read(values)


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
    "--exit-on-error": only_off(
        "a model that fails does not end the server: /health/ready is 503 while one has failed"
    ),
    "--exit-timeout-secs": renamed("--exit-timeout-s"),
    # HTTP
    "--allow-http": only_on("HTTP is the only protocol of the server"),
    "--http-address": renamed("--host"),
    "--http-port": renamed("--port"),
    "--http-max-input-size": renamed("--max-body-bytes"),
    "--http-thread-count": not_needed(_THREADS, "one"),
    "--reuse-http-port": only_off("each server needs its own port (docs/scale.md)"),
    "--http-header-forward-pattern": refused("headers are not passed on to models"),
    "--http-restricted-api": refused("use --keys-file with scopes (docs/authentication.md)"),
    # metrics
    "--allow-metrics": switch("--metrics"),
    "--metrics-address": refused("--metrics-port listens on the address of --host"),
    "--metrics-config": renamed("--metrics-config", scoped),
    # traces
    "--trace-config": refused(_TRACES),
    "--trace-file": refused(_TRACES),
    "--trace-level": refused(_TRACES),
    "--trace-rate": refused(f"{_TRACES}; --trace-sample-ratio is the fraction of requests"),
    "--trace-count": refused(_TRACES),
    "--trace-log-frequency": refused(_TRACES),
    # backends and caches
    "--backend-config": renamed("--backend-config", scoped),
    "--cache-config": renamed("--cache-config", scoped),
    "--response-cache-byte-size": renamed("--cache-config", _cache_size),
    # other protocols
    "--allow-grpc": _by_port("grpc-port", "8001"),
    "--reuse-grpc-port": only_off("each server needs its own port (docs/scale.md)"),
    "--grpc-address": refused("--grpc-port listens on the address of --host"),
    "--grpc-use-ssl": only_off(_GRPC_TLS),
    "--grpc-use-ssl-mutual": only_off(_GRPC_TLS),
    "--grpc-server-cert": renamed("--tls-certificate"),
    "--grpc-server-key": renamed("--tls-key"),
    "--grpc-root-cert": renamed("--tls-client-ca"),
    "--grpc-infer-thread-count": not_needed(_THREADS, "one"),
    "--grpc-infer-allocation-pool-size": not_needed("messages are allocated as needed", "one"),
    "--grpc-max-response-pool-size": not_needed("messages are allocated as needed", "one"),
    "--grpc-header-forward-pattern": refused("headers are not passed on to models"),
    "--grpc-restricted-protocol": refused(
        "use --keys-file with scopes (docs/authentication.md)"
    ),
    "--allow-sagemaker": only_off(_SAGEMAKER),
    "--sagemaker-port": refused(_SAGEMAKER),
    "--sagemaker-safe-port-range": refused(_SAGEMAKER),
    "--sagemaker-thread-count": refused(_SAGEMAKER),
    "--allow-vertex-ai": only_off(_VERTEX),
    "--vertex-ai-port": refused(_VERTEX),
    "--vertex-ai-thread-count": refused(_VERTEX),
    "--vertex-ai-default-model": refused(_VERTEX),
}  # fmt: skip
