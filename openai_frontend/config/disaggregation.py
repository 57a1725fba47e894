"""Settings of disaggregated prefill and decode, and what is wrong with a combination of them."""

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, Field

from openai_frontend.config.types import SECRET, Peers

Role = Literal["prefill", "decode", "both"]


class Disaggregation(BaseModel):
    """Disaggregated prefill and decode"""

    role: Role = Field(
        default="both",
        description="What this server does for each prompt (docs/disaggregation.md). `decode`: "
        "have it computed by a prefill server, and generate the answer. `prefill`: compute "
        "prompts for decode servers. `both`: everything itself.",
    )
    transfer_host: str = Field(
        default="127.0.0.1",
        description="Address on which a prefill server listens for decode servers.",
    )
    transfer_port: int = Field(
        default=9100,
        ge=1,
        le=65535,
        description="TCP port on which a prefill server listens for decode servers.",
    )
    prefill_peers: Peers = Field(
        default=[],
        description="URL of a prefill server that a decode server may use, as "
        "http://HOST:PORT with that server's `transfer_host` and `transfer_port`; repeatable. A "
        "name means a server at each of its addresses.",
    )
    transfer_key: str | None = Field(
        default=None,
        description="API key with the scope `transfer`, which a decode server sends to its "
        "prefill servers. Prefer the environment variable: flags are visible in the process list.",
        json_schema_extra=SECRET,
    )
    remote_prefill_min_tokens: int = Field(
        default=256,
        ge=1,
        description="Prompt tokens, without those in the prefix cache, from which a decode server "
        "asks a prefill server.",
    )

    def role_problem(self, *, keys: bool, ports: Mapping[str, int | None]) -> str | None:
        """Why this server cannot have this role, as one line; None if it can.

        `keys`: whether it requires API keys. `ports`: its other ports by setting.
        """
        if self.role == "decode":
            return self._decode_problem()
        for name in _DECODE_ONLY:
            if getattr(self, name):
                return f"{name}: only decode servers use it; set role to decode, or remove {name}"
        return self._prefill_problem(keys, ports) if self.role == "prefill" else None

    def _decode_problem(self) -> str | None:
        if not self.prefill_peers:
            return (
                "role: a decode server needs prefill servers; set prefill_peers to their URLs, such"
                " as http://HOST:9100, or set role to both"
            )
        if self.transfer_key is None:
            return (
                "role: a decode server needs transfer_key, an API key of its prefill servers with"
                " the scope 'transfer'; create one with: openai-frontend keys add NAME --scope"
                " transfer"
            )
        return None

    def _prefill_problem(self, keys: bool, ports: Mapping[str, int | None]) -> str | None:
        if not keys:
            return (
                "role: a prefill server needs API keys; set keys_file to a file with a key of the"
                " scope 'transfer'"
            )
        for name, port in ports.items():
            if self.transfer_port == port:
                return f"transfer_port: {port} is also {name}; set another one"
        return None


_DECODE_ONLY = ("prefill_peers", "transfer_key")
