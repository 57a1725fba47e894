"""The keys file: keys, or a one-line error that shows none of its content.

A file that is written is read back unchanged.
"""

from openai_frontend.auth.keys_file import InvalidKeysFile, parse, render
from scripts.fuzz.draw import Draw

_SECRET = b"sk-canary-0123456789abcdef"
_DIGEST = b"0" * 64

WORDS = (
    *(
        "keys:",
        "- name: a",
        "  sha256: ",
        "  scopes: [inference]",
        "models:",
        "expires: 2030-01-01",
    ),
    *(
        "requests_per_minute: 1",
        "&a",
        "*a",
        "<<: ",
        "!!python/object",
        "!!binary",
        "!!bool x",
        "!!int ''",
        "!!timestamp x",
        "? ",
        "|",
        ">",
    ),
    *("2030-13-01", "1:60", "0x1", ".nan", "'", '"', "{", "}", "[", "]", "\ufeff", "\x85"),
)
SEEDS = (
    b"\x00keys:\n- name: a\n  sha256: " + _DIGEST + b"\n  scopes: [inference]\n  priority: 1\n",
    b"\x00keys:\n- &a {name: a, sha256: '" + _DIGEST + b"', scopes: [metrics, admin]}\n- *a\n",
    b'\x01{"keys":[{"name":"a","sha256":"'
    + _DIGEST
    + b'","scopes":["models"],"max_concurrent_requests":2}]}',
    b"\x00keys:\n- name: a\n  expires: 2030-01-01T00:00:00Z\n  sha256: " + _SECRET,
)


def check(data: bytes) -> None:
    draw = Draw(data)
    as_json = bool(draw.byte() & 1)
    content = draw.rest()
    try:
        keys = parse(content, as_json=as_json)
    except InvalidKeysFile as error:
        message = str(error)
        assert "\n" not in message
        assert _SECRET.decode() not in message
        return
    for form in (True, False):
        again = parse(render(keys, as_json=form), as_json=form)
        assert [key.name for key in again] == [key.name for key in keys]
        assert [key.limits for key in again] == [key.limits for key in keys]
        assert [key.models for key in again] == [key.models for key in keys]
