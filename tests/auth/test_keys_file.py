import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_frontend.auth.keys import KeyLimits
from openai_frontend.auth.keys_file import MAX_BYTES, InvalidKeysFile, parse, read, render
from tests.auth.key_files import key, write

ENTRY = {"name": "a", "sha256": "0" * 64, "scopes": ["inference"]}


def content(*entries, **others):
    return yaml.safe_dump({"keys": list(entries), **others}).encode()


def test_the_least():
    """A key needs a name, a digest and a scope; all else has a default."""
    [parsed] = parse(content(ENTRY))

    assert (parsed.name, parsed.digest, parsed.scopes) == ("a", "0" * 64, frozenset({"inference"}))
    assert (parsed.models, parsed.limits, parsed.priority) == (None, KeyLimits(), 0)
    assert not parsed.is_expired()


@pytest.mark.parametrize("name", ["keys.yaml", "keys.json"])
def test_what_is_written_is_read(name, tmp_path):
    """In both forms, every field."""
    keys = [
        key("plain"),
        key(
            "all",
            models=["a", "org/*"],
            requests_per_minute=1,
            tokens_per_minute=2,
            max_concurrent_requests=3,
            priority=-4,
            isolate_prefix_cache=True,
            scopes=frozenset({"admin"}),
            created=parse(content({**ENTRY, "created": "2026-01-02T03:04:05+01:00"}))[0].created,
            expires=parse(content({**ENTRY, "expires": "2026-01-02T03:04:05Z"}))[0].expires,
        ),
    ]

    assert keys == read(write(tmp_path / name, *keys))


def test_times_as_yaml_has_them():
    """A moment without quotes is one too."""
    [parsed] = parse(content(ENTRY).replace(b"name", b"expires: 2026-01-02T03:04:05Z\n  name"))

    assert parsed.expires.isoformat() == "2026-01-02T03:04:05+00:00"


WRONG = [
    (b"", "the file: must be a mapping"),
    (b"keys", "the file: must be a mapping"),
    (b"{}", "keys: is missing"),
    (b"keys: 1", "keys: must be a list"),
    (b"keys: [1]", r"keys\[0\]: "),
    (b"keys: [\n\n  {a", "invalid YAML in line 4"),
    (b"\xff", "invalid YAML"),
    (b"x: !!python/name:os.system", "invalid YAML in line 1"),
    (b"expires: 2026-13-45", "invalid YAML"),
    (b"expires: !!timestamp x", "invalid YAML"),
    (b"isolate_prefix_cache: !!bool x", "invalid YAML"),
    (b"max_concurrent_requests: !!int ''", "invalid YAML"),
    (b"[" * 5000, "invalid YAML"),
    (content(ENTRY, more=1), "more: unknown field"),
    (content({**ENTRY, "scope": "admin"}), r"keys\[0\].scope: unknown field"),
    (content({**ENTRY, "scopes": []}), r"keys\[0\].scopes: must have 1 or more"),
    (content({**ENTRY, "scopes": ["root"]}), r"keys\[0\].scopes\[0\]: must be 'inference'"),
    (content({**ENTRY, "sha256": "0" * 63}), r"keys\[0\].sha256: String should match"),
    (content({**ENTRY, "sha256": "0" * 64 + "\n"}), r"keys\[0\].sha256: String should match"),
    (content({**ENTRY, "name": "a b"}), r"keys\[0\].name: String should match"),
    (
        content({**ENTRY, "max_concurrent_requests": 0}),
        r"keys\[0\].max_concurrent_requests: must be at least 1",
    ),
    (
        content({**ENTRY, "max_concurrent_requests": True}),
        r"keys\[0\].max_concurrent_requests: must be a whole number",
    ),
    (
        content({**ENTRY, "max_concurrent_requests": "1"}),
        r"keys\[0\].max_concurrent_requests: must be a whole number",
    ),
    (content({**ENTRY, "models": []}), r"keys\[0\].models: must have 1 or more"),
    (content({**ENTRY, "expires": "2026-01-02T03:04:05"}), r"keys\[0\].expires: .*timezone"),
    (content(ENTRY, {**ENTRY, "sha256": "1" * 64}), r"keys\[1\].name: already used by keys\[0\]"),
    (content(ENTRY, {**ENTRY, "name": "b"}), r"keys\[1\].sha256: already used by keys\[0\]"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_what_is_wrong(text, message):
    """The message is one line that names the place."""
    with pytest.raises(InvalidKeysFile, match=message) as refused:
        parse(text)
    assert "\n" not in str(refused.value)


CANARY = "sk-canary-3fb1c9"
CARELESS = [
    content({**ENTRY, "sha256": CANARY}),
    content({**ENTRY, "name": f"{CANARY} "}),
    content({**ENTRY, CANARY: 1}),
    content(**{CANARY: 1}),
    f"keys: [{CANARY}".encode(),
    f"keys: [{CANARY}]".encode(),
    f"{CANARY}: [".encode(),
    CANARY.encode(),
]


@pytest.mark.parametrize("text", CARELESS, ids=range(len(CARELESS)))
@pytest.mark.parametrize("as_json", [False, True])
def test_messages_show_no_key(text, as_json):
    """Who writes a key where its digest should stand does not find it in the log."""
    with pytest.raises(InvalidKeysFile) as refused:
        parse(text, as_json=as_json)
    assert CANARY not in str(refused.value)


def test_no_file(tmp_path):
    """The message names the path."""
    with pytest.raises(InvalidKeysFile, match=r"keys.yaml: No such file or directory"):
        read(tmp_path / "keys.yaml")


def test_a_huge_file(tmp_path):
    """It is not read to its end."""
    path = tmp_path / "keys.yaml"
    path.write_bytes(b"#" * (MAX_BYTES + 1))

    with pytest.raises(InvalidKeysFile, match=f"larger than {MAX_BYTES} bytes"):
        read(path)


def test_aliases_that_multiply():
    """They cost neither time nor memory."""
    rows = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    text = "\n".join(["a0: &a0 [x]", *rows, "keys: *a29"])

    with pytest.raises(InvalidKeysFile, match=r"keys\[0\]: "):
        parse(text.encode())


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
NAMES = [*ENTRY, "max_concurrent_requests", "expires"]
FIELDS = {name: st.just(ENTRY.get(name)) | VALUES for name in NAMES}
ENTRIES = st.fixed_dictionaries({}, optional=FIELDS)


def outcome(text, *, as_json):
    """The keys, or the failure's message."""
    try:
        return parse(text, as_json=as_json)
    except InvalidKeysFile as refused:
        return str(refused)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60) | st.lists(ENTRIES, max_size=2).map(lambda each: content(*each)))
def test_any_file(text):
    """Whatever stands in a file, it is keys or a failure of one line."""
    for as_json in (False, True):
        found = outcome(text, as_json=as_json)
        if isinstance(found, str):
            assert "\n" not in found
        else:
            assert found == parse(render(found))
