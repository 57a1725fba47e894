"""Combinations of settings for disaggregated prefill and decode."""

from typing import Any

import pytest

from openai_frontend.config.loader import InvalidSettings, load
from openai_frontend.config.settings import Settings

DECODE: dict[str, Any] = {
    "role": "decode",
    "prefill_peers": ["http://10.0.0.1:9100"],
    "transfer_key": "k",
}
PORTS = {"port": 9000, "metrics_port": None}


@pytest.mark.parametrize(
    ("settings", "keys", "problem"),
    [
        ({}, False, None),
        ({"role": "both"}, True, None),
        (DECODE, False, None),
        ({"role": "prefill"}, True, None),
        ({**DECODE, "prefill_peers": []}, True, "role: a decode server needs prefill servers"),
        ({**DECODE, "transfer_key": None}, True, "role: a decode server needs transfer_key"),
        ({"role": "prefill"}, False, "role: a prefill server needs API keys; set keys_file"),
        ({"role": "prefill", "transfer_port": 9000}, True, "transfer_port: 9000 is also port"),
        ({**DECODE, "role": "both"}, True, "prefill_peers: only decode servers use it"),
        ({"transfer_key": "k"}, True, "transfer_key: only decode servers use it"),
    ],
)
def test_roles_and_what_they_need(
    settings: dict[str, Any], keys: bool, problem: str | None
) -> None:
    """One line that names the setting and says what to do."""
    found = Settings(**settings).role_problem(keys=keys, ports=PORTS)

    assert found == problem or (problem is not None and str(found).startswith(problem))
    assert "\n" not in str(found)


@pytest.mark.parametrize(
    "peer",
    ["10.0.0.1:9100", "http://10.0.0.1", "http://10.0.0.1:9100/x", "ftp://a:1", "http://A:1"],
)
def test_peers_are_base_urls_with_a_port(peer: str) -> None:
    with pytest.raises(
        InvalidSettings, match=r"prefill-peers: .*must have the form http://HOST:PORT"
    ):
        load(flags={**DECODE, "prefill_peers": [peer]})


def test_transfer_key_is_not_shown() -> None:
    """Neither in messages nor in lists of settings."""
    with pytest.raises(InvalidSettings) as refused:
        load(environment={"OPENAI_FRONTEND_TRANSFER_KEY": "sk-canary"}, flags={"role": "decoder"})

    assert "sk-canary" not in str(refused.value)
