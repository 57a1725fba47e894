"""The settings of what connections, requests and engines may take, in groups; `settings.py` joins
them with the others.
"""

from typing import Literal

from pydantic import BaseModel, Field

from openai_frontend.model_options import EngineLimits
from openai_frontend.setting_values import Hosts, Networks


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


class LimitSettings(Engines, Limits, Connections):
    """All of them."""

    def engine_limits(self) -> EngineLimits:
        """What engines may take, where a model has no limits of its own."""
        return EngineLimits(
            first_token_s=self.first_token_timeout_s,
            inter_token_s=self.inter_token_timeout_s,
            restarts=self.engine_max_restarts,
            window_s=self.engine_restart_window_s,
        )
