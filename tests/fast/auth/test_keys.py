from datetime import UTC, datetime, timedelta

import pytest

from openai_frontend.auth.api_keys import new_secret
from openai_frontend.errors import NotPermitted
from tests.fast.auth.key_files import caller, key

ALLOWED = [
    (None, "anything", True),
    (["a"], "a", True),
    (["a"], "a@2", True),
    (["a"], "a@x", False),
    (["a"], "a:adapter", False),
    (["a:*"], "a:adapter", True),
    (["a"], "b", False),
    (["a"], "A", False),
    (["a"], "a\n", False),
    (["a"], "a@1\n", False),
    (["org/*"], "org/x", True),
    (["org/*"], "org", False),
    (["a@2"], "a", False),
    (["a@2"], "a@2", True),
    (["a@2"], "a@1", False),
]


@pytest.mark.parametrize(("models", "name", "allowed"), ALLOWED)
def test_models(models, name, allowed):
    """A name or pattern allows a model and its versions, not its adapters."""
    assert allowed == key("k", models=models).allows(name)


def test_expiry():
    """A key is valid until the second at which it expires."""
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    ending = key("k", expires=moment)

    before = (moment - timedelta(seconds=1)).timestamp()
    assert [ending.is_expired(before), ending.is_expired(moment.timestamp())] == [False, True]


def test_new_secret():
    """256 random bits, safe in headers and shells."""
    made = {new_secret() for _ in range(100)}

    assert len(made) == 100
    assert all(
        len(each) == 46 and each.replace("-", "").replace("_", "").isalnum() for each in made
    )


def test_scopes_do_not_include_each_other():
    admin = caller(key("k", scopes=frozenset({"admin"})))

    admin.require("admin")
    with pytest.raises(NotPermitted, match="'k' does not have the scope 'models'"):
        admin.require("models")


PRIORITIES = [
    (0, 0, 0),
    (0, 5, 5),
    (0, -5, 0),
    (-3, 0, -3),
    (-3, -5, -3),
    (-3, -1, -1),
    (4, 0, 4),
    (4, 9, 9),
    (4, 2, 4),
]


@pytest.mark.parametrize(("own", "asked", "granted"), PRIORITIES)
def test_priority(own, asked, granted):
    """A request can lower its key's priority, not raise it."""
    assert granted == caller(key("k", priority=own)).priority(asked)


def test_only_keys_that_isolate_own_their_caches():
    """Their digest is the owner; tests/medium/test_cache_salts.py shows what owners share."""
    shared, one, other = (caller(key(name, isolate_prefix_cache=name != "a")) for name in "abc")

    assert shared.cache_owner is None
    assert (one.cache_owner, other.cache_owner) == (one.key.digest, other.key.digest)
