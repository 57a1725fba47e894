"""Every setting once: its name, type, default, range and help, in groups.

Read by `cli` and `app` alone; everything below them receives values. Says nothing of where a value
comes from: `setting_sources` does.
"""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from openai_frontend import model_options
from openai_frontend.limit_settings import Connections, Engines, Limits, LimitSettings
from openai_frontend.log_settings import Log, LogSettings, Traces
from openai_frontend.model_options import ModelOptions
from openai_frontend.setting_values import (
    SECRET,
    ApiKeys,
    ByModel,
    Origins,
    ParserByModel,
    RootPath,
)
from openai_frontend.triton_settings import (
    Backends,
    Cache,
    Core,
    CoreLog,
    Metrics,
    Models,
    Resources,
    TritonSettings,
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


class Settings(TritonSettings, LogSettings, LimitSettings, Answers, Prompting, Access, Listening):
    """All settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def options_by_model(self) -> dict[str, ModelOptions]:
        """What the settings say of models, all of it in one place; `*` is every model."""
        return model_options.by_model(
            self.model_option,
            chat_template=self.chat_template,
            tool_call_parser=self.tool_call_parser,
            reasoning_parser=self.reasoning_parser,
        )


GROUPS: tuple[type[BaseModel], ...] = (
    Listening, Connections, Log, Traces, Models, Access, Limits, Engines, Prompting, Answers, Core,
    Backends, Resources, Cache, CoreLog, Metrics,
)  # fmt: skip
