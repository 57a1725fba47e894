"""Keys for tests, and files of them."""

import time
from pathlib import Path
from typing import Any

from openai_frontend.auth import keys_file
from openai_frontend.auth.api_keys import SCOPES, Key, Principal, digest_of
from openai_frontend.auth.rate_limit import Clock, KeyLimits, RateLimiter


def key(name: str, *, secret: str | None = None, **fields: Any) -> Key:
    """A key whose secret is its name unless told; it may do anything unless told."""
    names = KeyLimits.__dataclass_fields__
    limits = KeyLimits(**{each: fields.pop(each) for each in names if each in fields})
    fields.setdefault("scopes", frozenset(SCOPES))
    digest = digest_of((secret or name).encode())
    return Key(name=name, digest=digest, limits=limits, **fields)


def write(path: Path, *keys: Key) -> Path:
    path.write_bytes(keys_file.render(keys, as_json=path.suffix == ".json"))
    return path


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def caller(of: Key, clock: Clock = time.monotonic) -> Principal:
    return Principal(of, RateLimiter(of.name, of.limits, clock))


class FakeClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s
