"""Tenants with separate caches cannot detect each other's prompts (CVE-2025-46570, CVE-2025-46722):
a key with `isolate_prefix_cache` adds its own salt to every request, and no request can change it.

tests/api/test_request_fields.py shows with vLLM that a salt separates prefixes: no token is cached,
so response times reveal nothing.
"""

import json

import pytest

from tests.security.guarded import CHAT, COMPLETIONS, KEY, TENANTS, Guarded

ALICE, BOB = TENANTS


def salt(guarded: Guarded, key: str, path: str = CHAT, **fields) -> str | None:
    """Return the cache salt that the model receives."""
    asked = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    body = json.dumps({"model": "mirror", **asked, **fields}).encode()
    answer = json.loads(guarded.ask(f"POST {path}", body, key=key).body)
    choice = answer["choices"][0]
    told = json.loads(choice["message"]["content"] if path == CHAT else choice["text"])
    found: str | None = told["cache_salt"]
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


def test_no_other_key_can_use_the_salt_of_a_tenant(guarded):
    """Knowing a tenant's name is not enough: the salt depends on more of the key than its name."""
    bobs = salt(guarded, BOB) or ""

    assert BOB not in bobs
    assert salt(guarded, KEY, cache_salt="tenant-b") != bobs
    assert salt(guarded, KEY) is None
