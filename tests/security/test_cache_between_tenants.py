"""Who shares no cache cannot tell what others have sent (CVE-2025-46570, CVE-2025-46722): a key
with `isolate_prefix_cache` has a salt of its own in every request, which no request can leave.

tests/api/test_request_fields.py shows with vLLM that a salt keeps prefixes apart: no cached
token, and so no time that would tell.
"""

import json

import pytest

from tests.security.guarded import CHAT, COMPLETIONS, KEY, TENANTS, Guarded

ALICE, BOB = TENANTS


def salt(guarded: Guarded, key: str, path: str = CHAT, **fields) -> str | None:
    """What the model is told."""
    asked = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    body = json.dumps({"model": "mirror", **asked, **fields}).encode()
    answer = json.loads(guarded.ask(f"POST {path}", body, key=key).body)
    choice = answer["choices"][0]
    told = json.loads(choice["message"]["content"] if path == CHAT else choice["text"])
    found: str | None = told["cache_salt"]
    return found


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_tenants(guarded, path):
    """Each has its own, the same each time."""
    alices, bobs = salt(guarded, ALICE, path), salt(guarded, BOB, path)

    assert alices
    assert bobs
    assert alices != bobs
    assert salt(guarded, ALICE, path) == alices


def test_a_salt_of_the_request(guarded):
    """It divides the key's part, and never reaches another's."""
    alices, bobs = salt(guarded, ALICE), salt(guarded, BOB)
    for asked in (bobs, f"{bobs}", f"../{bobs}", f"/{bobs}", "x", "x/../y"):
        got = salt(guarded, ALICE, cache_salt=asked) or ""
        assert got.startswith(alices or "-")
        assert got != bobs
    assert salt(guarded, ALICE, cache_salt="x") != salt(guarded, ALICE, cache_salt="y")


def test_others_cannot_take_it(guarded):
    """Even who knows a tenant's name cannot say its salt: there is more of the key in it than the
    name.
    """
    bobs = salt(guarded, BOB) or ""

    assert BOB not in bobs
    assert salt(guarded, KEY, cache_salt="tenant-b") != bobs
    assert salt(guarded, KEY) is None
