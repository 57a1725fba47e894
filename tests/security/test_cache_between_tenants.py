"""Tenants with separate caches cannot detect each other's prompts (CVE-2025-46570, CVE-2025-46722):
the salts of a key with `isolate_prefix_cache` begin with an owner that no other request can write.

tests/medium/test_cache_salts.py has the property over all keys and salts;
tests/api/test_request_fields.py shows with vLLM that a salt separates prefixes: no token is cached,
so response times reveal nothing.
"""

import json
from typing import Any

import pytest

from tests.fast.auth.key_files import key as key_of
from tests.security.guarded import CHAT, COMPLETIONS, KEY, TENANTS, Guarded

ALICE, BOB = TENANTS
GENERATE = "/v2/models/mirror/generate"
PROMPTS: dict[str, dict[str, Any]] = {
    CHAT: {"model": "mirror", "messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"model": "mirror", "prompt": "hi"},
    GENERATE: {"text_input": "hi"},
}


def salt(guarded: Guarded, key: str, path: str = CHAT, **fields) -> str | None:
    """Return the cache salt that the model receives."""
    body = json.dumps({**PROMPTS[path], **fields}).encode()
    answer = json.loads(guarded.ask(f"POST {path}", body, key=key).body)
    if path == GENERATE:
        text = answer["text_output"]
    else:
        choice = answer["choices"][0]
        text = choice["message"]["content"] if path == CHAT else choice["text"]
    found: str | None = json.loads(text)["cache_salt"]
    return found


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_each_tenant_has_its_own_constant_salt(guarded, path):
    alices, bobs = salt(guarded, ALICE, path), salt(guarded, BOB, path)

    assert alices
    assert bobs
    assert alices != bobs
    assert salt(guarded, ALICE, path) == alices


def test_a_request_salt_stays_within_the_salt_of_its_key(guarded):
    """It divides the key's own cache and never equals another tenant's salt."""
    alices, bobs = salt(guarded, ALICE), salt(guarded, BOB)
    for asked in (bobs, f"{bobs}", f"../{bobs}", f"/{bobs}", "x", "x/../y"):
        got = salt(guarded, ALICE, cache_salt=asked) or ""
        assert got.startswith(alices or "-")
        assert got != bobs
    assert salt(guarded, ALICE, cache_salt="x") != salt(guarded, ALICE, cache_salt="y")


@pytest.mark.parametrize("path", PROMPTS)
def test_no_other_key_can_use_the_salt_of_a_tenant(guarded, path):
    """Neither with its salts, nor with anything that it knows of the tenant's key."""
    bobs = {salt(guarded, BOB) or "", salt(guarded, BOB, cache_salt="x") or ""}
    digest = key_of("tenant1", secret=BOB).digest

    for asked in (*bobs, digest, f"{digest[:16]}/", f"k/{digest[:32]}", BOB, "tenant1"):
        assert salt(guarded, KEY, path, cache_salt=asked) not in {*bobs, asked}


@pytest.mark.parametrize("path", PROMPTS)
def test_other_keys_share_the_caches_of_requests_without_a_salt(guarded, path):
    """The models that clients share find the prompts of all of them."""
    assert salt(guarded, KEY, path) is None
