"""The settings of what is told of the gateway's work, in groups; `settings.py` joins them with the
others.
"""

from typing import Literal

from pydantic import BaseModel, Field


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


class LogSettings(Log, Traces):
    """Both groups."""
