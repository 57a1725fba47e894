"""Every setting of the gateway: name, type, default, range and help, in groups.

Only `cli`, `app` and `lifespan` read it; modules below receive values.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from openai_frontend.config import model_options
from openai_frontend.config import triton_settings as triton
from openai_frontend.config.bucket_repositories import BucketRepository
from openai_frontend.config.disaggregation import Disaggregation
from openai_frontend.config.model_options import EngineLimits, ModelOptions
from openai_frontend.config.types import (
    SECRET,
    ApiKeys,
    ByModel,
    Domains,
    Hosts,
    Networks,
    Origins,
    ParserByModel,
    ReplicaName,
    RootPath,
)


class Listening(BaseModel):
    """Address and process"""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(
        default=9000, ge=0, le=65535, description="TCP port to listen on; 0 chooses a free port."
    )
    unix_socket: Path | None = Field(
        default=None, description="Path of a Unix socket to listen on instead of host and port."
    )
    tls_certificate: Path | None = Field(
        default=None,
        description="PEM file with the server's certificate chain. Serves HTTPS only. A changed "
        "file is applied without a restart.",
    )
    tls_key: Path | None = Field(
        default=None,
        description="PEM file with the private key, if the certificate file does not contain it.",
    )
    tls_client_ca: Path | None = Field(
        default=None,
        description="PEM file with CA certificates: clients must present a certificate issued by "
        "one of them. A changed file is applied without a restart.",
    )
    root_path: RootPath = Field(
        default="",
        description="Path prefix under which a reverse proxy serves the API, such as `/llm`, "
        "whether or not the proxy strips it. `/openapi.json` and the links of `/` use it.",
    )
    replica_name: ReplicaName | None = Field(
        default=None,
        description="Name of this server among its replicas, such as its host and port. Every "
        "response carries it in the header `x-served-by`; without it, no response names a server.",
    )
    enable_kserve: bool = Field(
        default=True, description="Serve the KServe v2 protocol under /v2 (docs/kserve.md)."
    )
    keep_alive_timeout_s: int = Field(
        default=30, ge=1, description="Close idle connections after this many seconds."
    )
    graceful_shutdown_timeout_s: int = Field(
        default=30,
        ge=0,
        description="Seconds that running requests may take to finish at shutdown.",
    )
    drain_delay_s: float = Field(
        default=0,
        ge=0,
        description="Seconds at shutdown during which the server reports not ready but still "
        "accepts requests. Set it to the time that a load balancer needs to notice.",
    )


class Access(BaseModel):
    """Authentication"""

    keys_file: Path | None = Field(
        default=None,
        description="YAML or JSON file with API keys (docs/authentication.md), managed by "
        "`openai-frontend keys`. Without any key, everyone who can reach the port can use the "
        "server.",
    )
    api_key: ApiKeys = Field(
        default=[],
        description="API key with all scopes; repeatable. Other users of the machine can see "
        "flags in the process list: prefer OPENAI_FRONTEND_API_KEY or keys_file.",
        json_schema_extra=SECRET,
    )
    jwks: str | None = Field(
        default=None,
        description="JWKS of an identity provider, as a file or an https URL. Its JSON Web "
        "Tokens are then accepted as keys. Requires the extra `jwt`.",
    )
    jwt_issuer: str | None = Field(
        default=None, description="Required issuer (`iss`) of tokens; must be set with `jwks`."
    )
    jwt_audience: str | None = Field(
        default=None, description="Required audience (`aud`) of tokens; must be set with `jwks`."
    )
    rate_limit_storage: str | None = Field(
        default=None,
        description="Redis that counts the requests per minute of keys for all gateways that use "
        "it, as redis://HOST:PORT/DB, rediss://, redis+unix://, redis+cluster:// or "
        "redis+sentinel://. Without it, each gateway counts by itself. Requires the extra `redis`.",
        json_schema_extra=SECRET,
    )
    cache_salt_secret: str | None = Field(
        default=None,
        min_length=16,
        description="Secret of 16 or more characters that separates the caches of keys with "
        "isolate_prefix_cache from those of others, and encrypts the reasoning that clients return "
        "unseen (requires the extra `jwt`). Servers that share caches or sessions need the "
        "same one. Default: derived from transfer_key; else random, and reasoning is only encoded.",
        json_schema_extra=SECRET,
    )
    public_health: bool = Field(
        default=True, description="Serve /health without a key, for supervisors and load balancers."
    )
    public_metrics: bool = Field(
        default=False, description="Serve /metrics and /version without a key."
    )
    web_pages: Literal["private", "public", "none"] = Field(
        default="private",
        description="Pages for browsers, / and /docs. private: they ask for a key if there are "
        "keys; public: /openapi.json, which /docs shows, needs none; none: no pages.",
    )
    cors_origins: Origins = Field(
        default=[],
        description="Origin (`https://chat.example.com`) whose web pages may call the API from a "
        "browser; repeatable; `*` allows all.",
    )


class Prompting(BaseModel):
    """Prompts"""

    chat_template: ByModel = Field(
        default={},
        description="File or built-in name of a chat template that replaces the model's own. "
        "Without `MODEL=` it applies to every model.",
    )
    tokenizer_threads: int = Field(
        default=2, ge=1, description="Threads that render and tokenize prompts."
    )
    tiktoken_vocabulary: Path | None = Field(
        default=None,
        description="File of OpenAI's tokenizer (cl100k_base.tiktoken). Token ids sent to "
        "/v1/embeddings are then decoded with it before the model tokenizes the text.",
    )


class Answers(BaseModel):
    """Output"""

    tool_call_parser: ParserByModel = Field(
        default={},
        description="Parser of tool calls, if the one detected from the model's files is wrong: "
        "a family, `none`, `vllm:NAME` or `package.module:Class` (docs/tools.md). Without "
        "`MODEL=` it applies to every model.",
    )
    reasoning_parser: ParserByModel = Field(
        default={},
        description="Parser that separates reasoning from content; values as for tool_call_parser.",
    )
    stream_interval: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="Tokens per stream event, unless the request sets `stream_interval`. The "
        "first token is always sent at once. Larger values use less CPU.",
    )
    force_include_usage: bool = Field(
        default=False,
        description="End every stream with a usage chunk, as if each request set "
        "`stream_options.include_usage`.",
    )


class Connections(BaseModel):
    """Connections"""

    max_connections: int = Field(
        default=4096,
        ge=1,
        description="Maximum open connections. Up to 10 % more are accepted and answered 503 "
        "(except /health); beyond that they are closed.",
    )
    header_timeout_s: float = Field(
        default=20.0,
        gt=0,
        description="Seconds within which the request line and headers must arrive.",
    )
    body_timeout_s: float = Field(
        default=120.0,
        gt=0,
        description="Seconds, counted from the headers, within which the body must arrive.",
    )
    request_timeout_s: float = Field(
        default=3600.0,
        ge=0,
        description="Seconds, counted from the headers, within which a model request must be "
        "answered completely; 0 disables.",
    )
    send_timeout_s: float = Field(
        default=30.0,
        gt=0,
        description="Disconnect a client that reads nothing for this many seconds while data is "
        "waiting for it.",
    )
    stream_buffer_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=64 * 1024,
        description="Maximum bytes of a stream buffered for a slow client. Beyond it, the client "
        "is disconnected.",
    )
    sse_ping_interval_s: float = Field(
        default=15.0,
        ge=0,
        description="Send an SSE comment after this many idle seconds (at the latest after twice "
        "as many); 0 disables.",
    )
    allowed_hosts: Hosts = Field(
        default=[],
        description="Host name (or `*.example.com`) accepted in the Host header; repeatable. "
        "Default: all, except that a server on 127.0.0.1 without keys, TLS and `trusted_proxies` "
        "accepts only `localhost` and IP addresses (docs/connections.md).",
    )
    trusted_proxies: Networks = Field(
        default=[],
        description="Address or network of a proxy whose X-Forwarded-For, X-Forwarded-Proto and "
        "Forwarded headers are trusted, or `unix` for the Unix socket; repeatable. Ignored from "
        "others.",
    )


class Limits(BaseModel):
    """Request limits"""

    max_body_bytes: int = Field(
        default=16 * 1024 * 1024, ge=1, description="Maximum bytes of a request body."
    )
    max_header_bytes: int = Field(
        default=64 * 1024, ge=1024, description="Maximum bytes of the request line and all headers."
    )
    max_buffered_body_bytes: int = Field(
        default=512 * 1024 * 1024,
        ge=1,
        description="Maximum bytes of all request bodies in memory. Beyond it, requests get 503.",
    )
    max_buffered_audio_bytes: int = Field(
        default=512 * 1024 * 1024,
        ge=1,
        description="Maximum bytes of audio in memory: samples decoded for transcriptions, and "
        "speech that is not sent yet. Beyond it, requests for either get 503.",
    )
    max_n: int = Field(default=128, ge=1, description="Maximum choices (`n`) per prompt.")
    max_prompt_tokens: int = Field(
        default=2**20,
        ge=1,
        description="Maximum prompt tokens per request, all prompts together; the model's "
        "context limits each prompt.",
    )
    max_output_tokens: int = Field(
        default=2**24,
        ge=1,
        description="Maximum output tokens that a request may ask for: choices times length.",
    )
    max_images: int = Field(
        default=16,
        ge=0,
        description="Maximum images per request; a model may take fewer. 0 refuses images.",
    )
    max_image_bytes: int = Field(
        default=20 * 1024 * 1024,
        ge=1,
        description="Maximum bytes of an image, decoded from base64; the body's limit "
        "(`max_body_bytes`) applies too.",
    )
    max_image_pixels: int = Field(
        default=25_000_000,
        ge=1,
        description="Maximum pixels of an image, by its header: nothing is decoded before.",
    )
    max_stored_image_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=0,
        description="Maximum bytes of base64 stored for images and audio that requests named with "
        "a `uuid` (docs/multimodal.md). Beyond it, the oldest are dropped; 0 stores none.",
    )
    allowed_media_domains: Domains = Field(
        default=[],
        description="Host name (or `*.example.com` for its subdomains) from which images and audio "
        "of chats may be fetched by https URL; repeatable. Default: nothing is fetched "
        "(docs/multimodal.md).",
    )
    max_audio_bytes: int = Field(
        default=25 * 1024 * 1024,
        ge=1,
        description="Maximum bytes of an audio file; the body around it may be larger than "
        "`max_body_bytes`.",
    )
    max_audio_seconds: int = Field(
        default=1500, ge=1, description="Maximum seconds of an audio file."
    )
    max_audio_files: int = Field(
        default=16,
        ge=0,
        description="Maximum audio files per chat; a model may take fewer. 0 refuses audio in "
        "chats.",
    )
    max_concurrent_requests: int = Field(
        default=1024,
        ge=1,
        description="Maximum requests running in the models (each choice, embedding or score "
        "counts as one). Further requests wait in the queue (docs/limits.md).",
    )
    max_queue_size: int = Field(
        default=1024,
        ge=0,
        description="Maximum requests waiting in the queue of each model. Beyond it, requests "
        "get 503; 0 disables queueing.",
    )
    behind_router: bool = Field(
        default=False,
        description="A router in front of several servers sends a rejected request to another "
        "one, so queues must be short: `max_queue_size` is a quarter of "
        "`max_concurrent_requests`, unless it is set (docs/limits.md).",
    )
    queue_timeout_s: float = Field(
        default=30.0,
        gt=0,
        description="Seconds that a request may wait in the queue before it gets 503.",
    )
    unknown_fields: Literal["warn", "reject", "ignore"] = Field(
        default="warn", description="What to do with unknown request fields."
    )


class Engines(BaseModel):
    """Engine health"""

    first_token_timeout_s: float = Field(
        default=600.0,
        ge=0,
        description="Seconds until a model's first response to a request, including time in the "
        "model's own queue; then the request gets 504. 0 disables. Can be set per model.",
    )
    inter_token_timeout_s: float = Field(
        default=120.0,
        ge=0,
        description="Seconds between two responses of a model to a request; then the request "
        "fails. 0 disables. Can be set per model.",
    )
    engine_max_restarts: int = Field(
        default=5,
        ge=0,
        description="Maximum restarts of a crashed or hung engine within "
        "`engine_restart_window_s`. Beyond it, the model stays down until it is loaded again. 0 "
        "disables restarts. Can be set per model.",
    )
    engine_restart_window_s: float = Field(
        default=600.0,
        gt=0,
        description="Seconds for which a restart counts toward `engine_max_restarts`.",
    )


class Log(BaseModel):
    """Logging"""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info",
        description="Minimum level of the gateway's own log lines. Libraries never log below info.",
    )
    log_format: Literal["text", "json"] = Field(
        default="text",
        description="Write text, or one JSON object per line (docs/tracing-and-logs.md). Applies "
        "to Triton and vLLM too.",
    )
    log_exception_texts: bool = Field(
        default=False,
        description="Log the messages of exceptions from libraries and models, even within a "
        "request. They may quote the prompt.",
    )
    access_log: bool = Field(default=False, description="Log one line per request.")


class Traces(BaseModel):
    """Tracing"""

    otlp_endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s?#]+$",
        description="Base URL of an OpenTelemetry collector (OTLP over HTTP), such as "
        "`http://localhost:4318`. Requires the extra `otel`.",
    )
    trace_sample_ratio: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Fraction of requests to trace, among those without an incoming trace.",
    )
    trace_parent_based: bool = Field(
        default=True,
        description="For requests with a `traceparent` header, follow the caller's sampling "
        "decision instead of the ratio.",
    )


# Name for `--help=NAME` -> group, in the order of `--help` and of docs/settings.md
GROUPS: Mapping[str, type[BaseModel]] = {
    "models": triton.Models,
    "address": Listening,
    "connections": Connections,
    "logging": Log,
    "tracing": Traces,
    "authentication": Access,
    "limits": Limits,
    "engines": Engines,
    "prompts": Prompting,
    "output": Answers,
    "disaggregation": Disaggregation,
    "triton": triton.TritonCore,
    "metrics": triton.Metrics,
}


class Settings(
    triton.Models, Listening, Connections, Log, Traces, Access, Limits, Engines, Prompting, Answers,
    Disaggregation, triton.TritonCore, triton.Metrics,
):  # fmt: skip
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def options_by_model(self) -> dict[str, ModelOptions]:
        """Options by model name from all settings; `*` applies to every model."""
        return model_options.by_model(
            self.model_option,
            chat_template=self.chat_template,
            tool_call_parser=self.tool_call_parser,
            reasoning_parser=self.reasoning_parser,
        )

    def repository_folders(self) -> list[Path]:
        """The local folders of the model repositories: those of buckets are copies."""
        return [each if isinstance(each, Path) else each.models() for each in self.model_repository]

    def buckets(self) -> list[BucketRepository]:
        """The model repositories in object storage."""
        return [each for each in self.model_repository if isinstance(each, BucketRepository)]

    def on_demand_models(self) -> dict[str, ModelOptions]:
        """The options of the models that requests load by their own options. Reads their files."""
        if self.model_control_mode == "poll":  # the core loads every model
            return {}
        return model_options.on_demand(self.repository_folders(), self.options_by_model())

    def queue_size(self) -> int:
        """The requests that may wait for each model without a limit of its own."""
        if self.behind_router and "max_queue_size" not in self.model_fields_set:
            return self.max_concurrent_requests // 4
        return self.max_queue_size

    def engine_limits(self) -> EngineLimits:
        """The limits of engines whose models have none of their own."""
        return EngineLimits(
            first_token_s=self.first_token_timeout_s,
            inter_token_s=self.inter_token_timeout_s,
            restarts=self.engine_max_restarts,
            window_s=self.engine_restart_window_s,
        )
