"""Options of KServe's protocol and of the servers; rows of `triton_option`.

Named as tritonserver's flags.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openai_frontend.config.restricted_groups import RESTRICTING_OPTIONS
from openai_frontend.config.trace_options import TRACE_OPTIONS
from openai_frontend.config.triton_options import (
    BOOLEAN,
    PATH,
    TEXT,
    TRITON_OPTIONS,
    OptionTexts,
    TritonOption,
    ValueKind,
    one_of,
    whole_number,
)

_MILLISECONDS = whole_number(0, 2**31 - 1)
_NEVER = 2**31 - 1
_AGE = ValueKind("NUMBER", lambda text: (_MILLISECONDS.parse(text)[0] or _NEVER,))
_LEVELS = {"none": 0, "low": 1, "medium": 2, "high": 3}  # gRPC's own numbers


def _pattern(text: str) -> tuple[re.Pattern[str]]:
    """Ignores the case of names, unless RE2's `(?-i)` begins the text."""
    is_exact = text.startswith("(?-i)")
    try:
        return (re.compile(text.removeprefix("(?-i)"), 0 if is_exact else re.IGNORECASE),)
    except re.error as error:
        raise ValueError(f"'{text}' is not a regular expression: {error}") from None


_PATTERN = ValueKind("REGEX", _pattern)

# The first member of a row is gRPC's channel argument
GRPC_OPTIONS: Mapping[str, TritonOption] = {
    "grpc-port": TritonOption(
        "", whole_number(0, 65535), "TCP port for gRPC; 0 chooses a free port. Default: no gRPC."
    ),
    "grpc-address": TritonOption("", TEXT, "Address to listen on. Default: that of `--host`."),
    "grpc-use-ssl": TritonOption(
        "",
        BOOLEAN,
        "TLS for gRPC with the files of the next options. Without it, gRPC has the TLS of HTTP.",
        default="false",
    ),
    "grpc-use-ssl-mutual": TritonOption(
        "",
        BOOLEAN,
        "Also require certificates of clients, issued by `grpc-root-cert`.",
        default="false",
    ),
    "grpc-server-cert": TritonOption("", PATH, "Certificate chain, a PEM file."),
    "grpc-server-key": TritonOption("", PATH, "Private key, a PEM file."),
    "grpc-root-cert": TritonOption("", PATH, "Authorities of clients' certificates, a PEM file."),
    "reuse-grpc-port": TritonOption(
        "grpc.so_reuseport",
        BOOLEAN,
        "Let several servers of the same user listen on `--grpc-port` (SO_REUSEPORT).",
        default="false",
    ),
    "grpc-header-forward-pattern": TritonOption(
        "", _PATTERN, "Metadata whose whole name matches becomes parameters for the model."
    ),
    "grpc-reflection": TritonOption(
        "",
        BOOLEAN,
        "Serve gRPC's server reflection, for grpcurl and similar tools. Not an option of "
        "tritonserver.",
        default="false",
    ),
    "grpc-infer-response-compression-level": TritonOption(
        "grpc.default_compression_level",
        one_of(_LEVELS),
        "Compression of responses to clients that accept it.",
        default="none",
    ),
    "grpc-keepalive-time": TritonOption(
        "grpc.keepalive_time_ms",
        _MILLISECONDS,
        "Milliseconds after which an idle connection is pinged.",
        default="7200000",
    ),
    "grpc-keepalive-timeout": TritonOption(
        "grpc.keepalive_timeout_ms",
        _MILLISECONDS,
        "Milliseconds to wait for the answer of a ping before the connection is closed.",
        default="20000",
    ),
    "grpc-keepalive-permit-without-calls": TritonOption(
        "grpc.keepalive_permit_without_calls",
        BOOLEAN,
        "Also ping connections without calls.",
        default="false",
    ),
    "grpc-http2-max-pings-without-data": TritonOption(
        "grpc.http2.max_pings_without_data",
        _MILLISECONDS,
        "Pings between two data frames; 0: any number.",
        default="2",
    ),
    "grpc-http2-min-recv-ping-interval-without-data": TritonOption(
        "grpc.http2.min_ping_interval_without_data_ms",
        _MILLISECONDS,
        "Milliseconds below which the pings of a client without calls are bad pings.",
        default="300000",
    ),
    "grpc-http2-max-ping-strikes": TritonOption(
        "grpc.http2.max_ping_strikes",
        _MILLISECONDS,
        "Bad pings after which a connection is closed; 0: any number.",
        default="2",
    ),
    "grpc-max-connection-age": TritonOption(
        "grpc.max_connection_age_ms",
        _AGE,
        "Milliseconds after which a connection is closed, once its calls have ended; 0: never.",
    ),
    "grpc-max-connection-age-grace": TritonOption(
        "grpc.max_connection_age_grace_ms",
        _AGE,
        "Milliseconds that calls may take to end on a connection of that age; 0: any time.",
    ),
}


_TLS_FILES = {
    "certificate": "grpc-server-cert",
    "key": "grpc-server-key",
    "client_ca": "grpc-root-cert",
}

KSERVE_OPTIONS: Mapping[str, TritonOption] = {
    "allow-client-shm": TritonOption(
        "",
        BOOLEAN,
        "Let clients register shared memory of this machine and send tensors in it.",
        default="false",
    ),
}

SERVER_OPTIONS: Mapping[str, TritonOption] = {
    "http-header-forward-pattern": TritonOption(
        "",
        _PATTERN,
        "Headers of requests below /v2 whose whole name matches become parameters for the model.",
    ),
    "metrics-address": TritonOption(
        "", TEXT, "Address of `--metrics-port` to listen on. Default: that of `--host`."
    ),
    "reuse-http-port": TritonOption(
        "",
        BOOLEAN,
        "Let several servers of the same user listen on `--port` (SO_REUSEPORT).",
        default="false",
    ),
    "exit-on-error": TritonOption(
        "",
        BOOLEAN,
        "Exit with code 1 if a model fails to load at the start.",
        default="false",
    ),
    "vertex-ai-default-model": TritonOption(
        "", TEXT, "Model of predictions in KServe's format that name none."
    ),
}

ALL_OPTIONS: Mapping[str, TritonOption] = {
    **TRITON_OPTIONS,
    **KSERVE_OPTIONS,
    **SERVER_OPTIONS,
    **GRPC_OPTIONS,
    **RESTRICTING_OPTIONS,
    **TRACE_OPTIONS,
}


def allows_client_shared_memory(texts: OptionTexts) -> bool:
    """Whether clients may register regions of shared memory."""
    return bool(value(texts, "allow-client-shm"))


def value(texts: OptionTexts, name: str) -> Any:
    """The option's value, or its default; None if it has none."""
    option = ALL_OPTIONS[name]
    text = texts[name][0] if name in texts else option.default
    return None if text is None else option.kind.parse(text)[0]


def tls_files(texts: OptionTexts) -> Mapping[str, Path] | None:
    """The files of gRPC's own TLS: `certificate`, `key`, and `client_ca` for mutual TLS. None: it
    has none. Raises ValueError that names an option which is missing, or has no effect.
    """
    mutual = value(texts, "grpc-use-ssl-mutual")
    if not mutual and not value(texts, "grpc-use-ssl"):
        unused = next((name for name in _TLS_FILES.values() if name in texts), None)
        if unused is not None:
            raise ValueError(f"{unused}: needs grpc-use-ssl=true")
        return None
    # Like tritonserver, read the authorities only for mutual TLS
    needed = {name: _TLS_FILES[name] for name in _TLS_FILES if mutual or name != "client_ca"}
    missing = next((option for option in needed.values() if option not in texts), None)
    if missing is not None:
        raise ValueError(f"{missing}: required by grpc-use-ssl{'-mutual' if mutual else ''}")
    return {name: Path(value(texts, option)) for name, option in needed.items()}


def channel_arguments(texts: OptionTexts) -> list[tuple[str, int]]:
    """gRPC's arguments for the options of connections."""
    found = [(option.setter, value(texts, name)) for name, option in GRPC_OPTIONS.items()]
    return [(name, int(number)) for name, number in found if name and number not in (None, _NEVER)]
