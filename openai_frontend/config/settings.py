"""Every setting once: its name, type, default, range and help, in groups.

Read by `cli` and `app` alone; everything below them receives values. Says nothing of where a value
comes from: `setting_sources` does.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from openai_frontend.config import model_options
from openai_frontend.config import triton_settings as triton
from openai_frontend.config.model_options import EngineLimits, ModelOptions
from openai_frontend.config.types import (
    SECRET,
    ApiKeys,
    ByModel,
    Hosts,
    Networks,
    Origins,
    ParserByModel,
    RootPath,
)


class Listening(BaseModel):
    """Address and process"""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=9000, ge=0, le=65535, description="TCP port; 0 takes a free one.")
    unix_socket: Path | None = Field(
        default=None, description="Unix socket to listen on, in place of host and port."
    )
    tls_certificate: Path | None = Field(
        default=None,
        description="PEM file of the server's certificate chain: serve HTTPS alone. It is read "
        "again when it changes.",
    )
    tls_key: Path | None = Field(
        default=None, description="PEM file of its key, where the certificate's has none."
    )
    tls_client_ca: Path | None = Field(
        default=None,
        description="PEM file of authorities: clients must show a certificate of theirs. It is "
        "read again when it changes.",
    )
    root_path: RootPath = Field(
        default="",
        description="Path under which a reverse proxy serves the API, such as `/llm`, whether or "
        "not the proxy drops it. `/openapi.json` and the links of `/` start with it.",
    )
    enable_kserve: bool = Field(
        default=True, description="Serve KServe's v2 protocol below /v2 (docs/kserve.md)."
    )
    keep_alive_timeout_s: int = Field(
        default=30, ge=1, description="Seconds that an idle connection stays open."
    )
    graceful_shutdown_timeout_s: int = Field(
        default=30, ge=0, description="Seconds that running requests have to end at a stop."
    )
    drain_delay_s: float = Field(
        default=0,
        ge=0,
        description="Seconds at a stop in which requests are still taken, though readiness is gone "
        "already: those that a load balancer takes to notice.",
    )


class Access(BaseModel):
    """Access"""

    keys_file: Path | None = Field(
        default=None,
        description="YAML or JSON file of API keys (docs/authentication.md), written by "
        "`openai-frontend keys add`. Without a key, anyone who can reach the port can use the "
        "server.",
    )
    api_key: ApiKeys = Field(
        default=[],
        description="API key that opens everything; may be given again. Other users of the machine "
        "see a flag in the list of processes: prefer OPENAI_FRONTEND_API_KEY or keys_file.",
        json_schema_extra=SECRET,
    )
    jwks: str | None = Field(
        default=None,
        description="The signing keys of an identity provider, a file or an https address: its "
        "JSON Web Tokens are taken as keys too. Needs the extra `jwt`.",
    )
    jwt_issuer: str | None = Field(
        default=None, description="Who must have issued a token (`iss`); with `jwks`."
    )
    jwt_audience: str | None = Field(
        default=None, description="For whom a token must be (`aud`); with `jwks`."
    )
    public_health: bool = Field(
        default=True, description="/health needs no key: supervisors have none."
    )
    public_metrics: bool = Field(default=False, description="/metrics and /version need no key.")
    public_docs: bool = Field(default=False, description="/docs needs no key.")
    cors_origins: Origins = Field(
        default=[],
        description="Web origin (`https://chat.example.com`) whose pages may use the API from a "
        "browser; `*` for every one.",
    )


class Prompting(BaseModel):
    """Prompts"""

    chat_template: ByModel = Field(
        default={},
        description="File or built-in name of a chat template that replaces the model's own; "
        "without `MODEL=` every model's.",
    )
    tokenizer_threads: int = Field(default=2, ge=1, description="Threads that build prompts.")
    tokenizer_queue: int = Field(
        default=256, ge=0, description="Prompts that may wait for a thread; one more gets 503."
    )
    tiktoken_vocabulary: Path | None = Field(
        default=None,
        description="File of OpenAI's tokenizer (cl100k_base.tiktoken). Token ids sent to "
        "/v1/embeddings are then OpenAI's: read as the text that they stand for.",
    )


class Answers(BaseModel):
    """Answers"""

    tool_call_parser: ParserByModel = Field(
        default={},
        description="What reads tool calls out of answers, where the model's own files do not say "
        "it right: a family, `none`, `vllm:NAME` or `package.module:Class` (docs/tools.md); "
        "without `MODEL=` every model's.",
    )
    reasoning_parser: ParserByModel = Field(
        default={}, description="The same for what tells reasoning from the answer."
    )
    stream_interval: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="Tokens for each event of a stream, where the request does not say "
        "(`stream_interval`); the first comes at once. A larger number costs less CPU.",
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
        description="Connections at a time; requests on one more are answered 503, but for "
        "/health. A tenth more are held to say so, others are closed at once.",
    )
    header_timeout_s: float = Field(
        default=20.0, gt=0, description="Seconds in which a request's head must have come."
    )
    body_timeout_s: float = Field(
        default=120.0, gt=0, description="Seconds from its head in which a body must have come."
    )
    request_timeout_s: float = Field(
        default=3600.0,
        ge=0,
        description="Seconds from its head in which a request to a model must be answered to its "
        "end; 0: for ever.",
    )
    send_timeout_s: float = Field(
        default=30.0,
        gt=0,
        description="Seconds after which a client that reads nothing, though something waits for "
        "it, is dropped.",
    )
    stream_buffer_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=64 * 1024,
        description="Bytes of a stream that may wait for a client that reads too slowly; beyond "
        "them it is dropped.",
    )
    sse_ping_interval_s: float = Field(
        default=15.0,
        ge=0,
        description="A stream that is silent for so many seconds sends a comment, before the next "
        "as many are over; 0: never.",
    )
    allowed_hosts: Hosts = Field(
        default=[],
        description="Name (or `*.example.com`) by which clients may call the server in the Host "
        "header. Without any: by every one, but on 127.0.0.1 without keys, TLS and "
        "`trusted_proxies` by `localhost` and by addresses alone (docs/connections.md).",
    )
    trusted_proxies: Networks = Field(
        default=[],
        description="Address or network of a proxy that says whom it speaks for "
        "(X-Forwarded-For, X-Forwarded-Proto, Forwarded), or `unix` for the Unix socket; others "
        "are not listened to.",
    )


class Limits(BaseModel):
    """Limits on requests"""

    max_body_bytes: int = Field(
        default=16 * 1024 * 1024, ge=1, description="Bytes of a request's body."
    )
    max_header_bytes: int = Field(
        default=64 * 1024, ge=1024, description="Bytes of a request's head, all headers together."
    )
    max_body_chunks: int = Field(
        default=65_536, ge=1, description="Pieces of a body that is sent in chunks."
    )
    max_buffered_body_bytes: int = Field(
        default=512 * 1024 * 1024,
        ge=1,
        description="Bytes of the bodies of all requests at work; beyond them one is answered 503.",
    )
    max_messages: int = Field(default=2048, ge=1, description="Messages in one chat.")
    max_n: int = Field(default=128, ge=1, description="Choices (`n`) for one prompt.")
    max_prompts: int = Field(
        default=2048, ge=1, description="Prompts times choices in one completions request."
    )
    max_prompt_tokens: int = Field(
        default=2**20,
        ge=1,
        description="Tokens of one request's prompts, all together; a model's context bounds each.",
    )
    max_output_tokens: int = Field(
        default=2**24,
        ge=1,
        description="Tokens that one request may ask for: choices times length.",
    )
    max_input_tokens: int = Field(
        default=300_000, ge=1, description="Tokens of one embeddings request, all inputs together."
    )
    max_concurrent_requests: int = Field(
        default=1024,
        ge=1,
        description="Requests at work in the models at the same time (choices, embeddings, "
        "scores); one more waits for a place (docs/limits.md).",
    )
    max_queue_size: int = Field(
        default=1024,
        ge=0,
        description="Requests that may wait for a place in a model, each model's by themselves; "
        "one more is answered 503, as is every one that finds no place where this is 0.",
    )
    queue_timeout_s: float = Field(
        default=30.0, gt=0, description="Seconds that a request may wait; then it is answered 503."
    )
    unknown_fields: Literal["warn", "reject", "ignore"] = Field(
        default="warn", description="What happens to request fields that nobody knows."
    )


class Engines(BaseModel):
    """Engines that die or hang"""

    first_token_timeout_s: float = Field(
        default=600.0,
        ge=0,
        description="Seconds that a model may take for the first response to a request, its own "
        "queue included; then the request ends with 504. 0: for ever. A model may have its own.",
    )
    inter_token_timeout_s: float = Field(
        default=120.0,
        ge=0,
        description="Seconds that a model may be silent once it has begun an answer. 0: for ever. "
        "A model may have its own.",
    )
    engine_max_restarts: int = Field(
        default=5,
        ge=0,
        description="Starts of an engine that has died, or hangs, in `engine_restart_window_s`; "
        "then its model stays down until it is loaded again. 0: none. A model may have its own.",
    )
    engine_restart_window_s: float = Field(
        default=600.0,
        gt=0,
        description="Seconds for which a start of an engine counts.",
    )


class Log(BaseModel):
    """Log"""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info",
        description="Lines of the gateway's own log; those of its libraries are info at most.",
    )
    log_format: Literal["text", "json"] = Field(
        default="text",
        description="Lines of text, or one JSON object a line (docs/tracing-and-logs.md); Triton's "
        "and vLLM's lines too.",
    )
    log_exception_texts: bool = Field(
        default=False,
        description="Log what exceptions of libraries and models say, also those of a request: "
        "they may quote its prompt.",
    )
    access_log: bool = Field(default=False, description="Log one line for each request.")


class Traces(BaseModel):
    """Traces"""

    otlp_endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s?#]+$",
        description="Collector of OpenTelemetry traces, by OTLP over HTTP: "
        "`http://localhost:4318`. Needs the extra `otel`.",
    )
    trace_sample_ratio: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Share of the requests that are traced, of those that come without a trace.",
    )
    trace_parent_based: bool = Field(
        default=True,
        description="A request that comes with a trace (`traceparent`) is traced where its caller "
        "says so; else by the ratio too.",
    )


# In the order of `--help` and of docs/settings.md
GROUPS: tuple[type[BaseModel], ...] = (
    Listening, Connections, Log, Traces, triton.Models, Access, Limits, Engines, Prompting, Answers,
    triton.Core, triton.Backends, triton.Resources, triton.Cache, triton.CoreLog, triton.Metrics,
)  # fmt: skip


class Settings(
    Listening, Connections, Log, Traces, triton.Models, Access, Limits, Engines, Prompting, Answers,
    triton.Core, triton.Backends, triton.Resources, triton.Cache, triton.CoreLog, triton.Metrics,
):  # fmt: skip
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def options_by_model(self) -> dict[str, ModelOptions]:
        """What the settings say of models, all of it in one place; `*` is every model."""
        return model_options.by_model(
            self.model_option,
            chat_template=self.chat_template,
            tool_call_parser=self.tool_call_parser,
            reasoning_parser=self.reasoning_parser,
        )

    def engine_limits(self) -> EngineLimits:
        """What engines may take, where a model has no limits of its own."""
        return EngineLimits(
            first_token_s=self.first_token_timeout_s,
            inter_token_s=self.inter_token_timeout_s,
            restarts=self.engine_max_restarts,
            window_s=self.engine_restart_window_s,
        )
