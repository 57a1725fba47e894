"""The flags of `vllm serve` for its HTTP server, and engine flags that are options of `serve` too.

Other engine flags are passed on to vLLM (`engine.py`).
"""

import json
from collections.abc import Sequence

from openai_frontend.cli.flags.rules import (
    Reading,
    Rule,
    instead,
    not_needed,
    only,
    only_off,
    refused,
    renamed,
    repeated,
    switch,
)

_LOGGED = "requests are logged only with --access-log"
_NODES = "run one server per node behind a router (docs/scale.md)"
_REPLICAS = "run several servers behind a router (docs/scale.md)"
_HEAD = "use --max-header-bytes for the request's head"
_OTHER_API = "the server has no API of this provider"
_SPECULATIVE = "vLLM replaced it: use --speculative-config '{...}'"
_LEVELS = {"critical": "error", "notset": "debug", "trace": "debug"}


def _level(text: str) -> str:
    return _LEVELS.get(text.lower(), text.lower())


def _origins(text: str) -> Sequence[str]:
    """A JSON list, or one origin."""
    try:
        found = json.loads(text)
    except ValueError:
        return [text]
    return [str(each) for each in found] if isinstance(found, list) else [text]


def _all_allowed(reason: str) -> Rule:
    def read(values: Sequence[str]) -> Reading:
        every = all(list(_origins(value)) == ["*"] for value in values)
        return Reading(note=reason) if every else Reading(problem=reason)

    return Rule("one", read)


def _adapters(values: Sequence[str]) -> Reading:
    """NAME=PATH, or JSON with both."""
    pairs = []
    for value in values:
        name, found, path = value.partition("=")
        if value.startswith(("{", "[")):
            return Reading(invalid="use the form NAME=FOLDER (docs/lora.md)")
        if not (name and found and path) or "," in value:
            return Reading(invalid=f"'{value}' must have the form NAME=FOLDER")
        pairs.append(f"{name}={path}")
    return Reading(
        ("--engine-arg", "enable_lora=true", "--model-option", f"*:adapters={','.join(pairs)}")
    )


def _effort_map(values: Sequence[str]) -> Reading:
    """JSON: each effort with another, alone or as the only variable of the chat template."""
    try:
        found = json.loads(values[0])
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return Reading(invalid=f"'{values[0]}' is not a JSON object")
    pairs = {
        effort: to["reasoning_effort"] if _is_effort(to) else to for effort, to in found.items()
    }
    if not all(isinstance(to, str) for to in pairs.values()):
        return Reading(
            invalid="an effort can only become another effort; set other variables in a file for "
            "--chat-template"
        )
    text = ",".join(f"{effort}={to}" for effort, to in pairs.items())
    return Reading(("--model-option", f"*:reasoning_effort_map={text}") if pairs else ())


def _is_effort(variables: object) -> bool:
    return isinstance(variables, dict) and variables.keys() == {"reasoning_effort"}


FLAGS: dict[str, Rule] = {
    # models
    "--model": refused("MODEL is named already, without a flag"),
    "--served-model-name": repeated("--served-model-name"),
    "--lora-modules": Rule("several", _adapters),
    "--task": refused("use --runner pooling for embeddings and scores; other models need nothing"),
    "--headless": refused(_NODES, "switch"),
    "--api-server-count": only("1", _REPLICAS),
    "-asc": only("1", _REPLICAS),
    "-n": refused("write --nnodes (vLLM), or --model-option '*:max_output_tokens=...' (llama.cpp)"),
    # prompts and output
    "--chat-template-content-format": only("auto", "the chat template decides the form"),
    "--default-chat-template-kwargs": refused(
        "send chat_template_kwargs in requests, or set the value in a file for --chat-template"
    ),
    "--reasoning-effort-map": Rule("one", _effort_map),
    "--trust-request-chat-template": only_off("requests cannot contain a chat template"),
    "--trust-request-mm-kwargs": only_off("requests cannot change how media are processed"),
    "--response-role": only("assistant", "answers always have the role assistant"),
    "--return-tokens-as-token-ids": only_off("set return_tokens_as_token_ids in requests"),
    "--enable-auto-tool-choice": not_needed("tool calls work if the template has them"),
    "--enable-reasoning": not_needed("reasoning is parsed if the model's template has it"),
    "--tool-parser-plugin": refused("use --tool-call-parser package.module:Class (docs/tools.md)"),
    "--reasoning-parser-plugin": refused(
        "use --reasoning-parser package.module:Class (docs/tools.md)"
    ),
    "--tool-strict-level": only("auto", "set strict for each function in requests"),
    "--tool-server": refused("the server calls no tools; clients do"),
    "--enable-force-include-usage": switch("--force-include-usage"),
    "--enable-prompt-tokens-details": not_needed("each usage has prompt_tokens_details"),
    "--sse-keep-alive-interval": renamed("--sse-ping-interval-s"),
    "--allowed-local-media-path": refused(
        "files of the server are never read: clients send data URLs, or https URLs from the hosts "
        "of --allowed-media-domains"
    ),
    "--allowed-media-domains": repeated("--allowed-media-domains"),
    # address and TLS
    "--uds": renamed("--unix-socket"),
    "--ssl-keyfile": renamed("--tls-key"),
    "--ssl-certfile": renamed("--tls-certificate"),
    "--ssl-ca-certs": instead(
        renamed("--tls-client-ca"), "every client must then present a certificate"
    ),
    "--ssl-cert-reqs": only("0", "use --tls-client-ca to require client certificates"),
    "--ssl-ciphers": refused("the ciphers of OpenSSL's defaults are used"),
    "--enable-ssl-refresh": not_needed("changed certificates are applied without a restart"),
    "--allowed-origins": repeated("--cors-origins", _origins),
    "--allowed-methods": _all_allowed("every method of the API is allowed for --cors-origins"),
    "--allowed-headers": _all_allowed("every header of the API is allowed for --cors-origins"),
    "--allow-credentials": only_off("cookies are not used; keys are in the Authorization header"),
    "--middleware": refused("run such code in a proxy in front of the server"),
    "--h11-max-incomplete-event-size": refused(_HEAD),
    "--h11-max-header-count": refused(_HEAD),
    # endpoints
    "--enable-offline-docs": not_needed("/docs loads nothing from other hosts"),
    "--disable-fastapi-docs": only_off("/docs needs a key if the server has keys"),
    "--enable-tokenizer-info-endpoint": only_off("/tokenizer_info is not served"),
    "--enable-server-load-tracking": only_off("/load is not served; /metrics counts requests"),
    "--enable-per-request-metrics": only_off("use /metrics, or --otlp-endpoint for each request"),
    "--tokens-only": only_off("all endpoints are served"),
    "--enable-scale-out": only_off("such endpoints are not served (docs/disaggregation.md)"),
    "--fingerprint-mode": refused("system_fingerprint has no options"),
    "--fingerprint-value": refused("system_fingerprint has no options"),
    "--cohere-format": refused(_OTHER_API),
    "--cohere-is-reasoning-model": refused(_OTHER_API, "switch"),
    "--anthropic-disabled-thinking-effort": refused(_OTHER_API),
    # limits and processes
    "--max-num-queued-reqs": renamed("--max-queue-size"),
    "--shutdown-timeout": renamed("--graceful-shutdown-timeout-s"),
    "--disable-frontend-multiprocessing": not_needed("engines are started as vLLM does for them"),
    "--data-parallel-supervisor-port": refused(_REPLICAS),
    "--grpc": refused("vLLM's gRPC is not served; --grpc-port serves KServe's", "switch"),
    # logs and traces
    "--log-level": renamed("--log-level", _level),
    "--uvicorn-log-level": renamed("--log-level", _level),
    "--enable-log-requests": switch("--access-log"),
    "--disable-log-requests": not_needed(_LOGGED),
    "--disable-uvicorn-access-log": not_needed(_LOGGED),
    "--disable-access-log-for-endpoints": not_needed(_LOGGED, "one"),
    "--enable-log-outputs": only_off("outputs are never logged"),
    "--enable-log-deltas": only_off("outputs are never logged"),
    "--max-log-len": not_needed("prompts are never logged", "one"),
    "--log-error-stack": only_off("use --log-exception-texts"),
    "--log-config-file": refused("use --log-level and --log-format"),
    "--enable-request-id-headers": not_needed("each response has x-request-id"),
    "--otlp-traces-endpoint": refused("use --otlp-endpoint http://HOST:4318, for OTLP over HTTP"),
    # removed from vLLM
    "--guided-decoding-backend": refused(
        "vLLM replaced it: use --structured-outputs-config.backend"
    ),
    "--max-seq-len-to-capture": refused("vLLM replaced it: use --max-cudagraph-capture-size"),
    "--rope-scaling": refused("vLLM replaced it: use --hf-overrides '{...}'"),
    "--rope-theta": refused("vLLM replaced it: use --hf-overrides '{...}'"),
    "--speculative-model": refused(_SPECULATIVE),
    "--num-speculative-tokens": refused(_SPECULATIVE),
    "--device": refused("vLLM removed it: its build decides the device"),
    "--swap-space": refused("vLLM removed it: use --kv-offloading-size"),
    "--num-scheduler-steps": refused("vLLM removed it: --async-scheduling is its default"),
    "--use-v2-block-manager": refused("vLLM removed it: it has only one", "switch"),
}
