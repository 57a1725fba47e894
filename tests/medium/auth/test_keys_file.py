import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_frontend.auth.keys_file import MAX_BYTES, InvalidKeysFile, parse, read, render
from openai_frontend.auth.rate_limit import KeyLimits
from tests.examples import scaled
from tests.fast.auth.key_files import key, write

ENTRY = {"name": "a", "sha256": "0" * 64, "scopes": ["inference"]}


def content(*entries, **others):
    return yaml.safe_dump({"keys": list(entries), **others}).encode()


def test_required_fields():
    """All others have a default."""
    [parsed] = parse(content(ENTRY))

    assert (parsed.name, parsed.digest, parsed.scopes) == ("a", "0" * 64, frozenset({"inference"}))
    assert (parsed.models, parsed.limits, parsed.priority) == (None, KeyLimits(), 0)
    assert not parsed.is_expired()


@pytest.mark.parametrize("name", ["keys.yaml", "keys.json"])
def test_render_and_read_round_trip(name, tmp_path):
    """In both formats, every field."""
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


def test_unquoted_yaml_timestamps():
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
def test_errors_name_the_position(text, message):
    """In one line."""
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
def test_errors_never_quote_the_file(text, as_json):
    """A key in place of its digest does not reach the log."""
    with pytest.raises(InvalidKeysFile) as refused:
        parse(text, as_json=as_json)
    assert CANARY not in str(refused.value)


def test_missing_file(tmp_path):
    """The message names the path."""
    with pytest.raises(InvalidKeysFile, match=r"keys.yaml: No such file or directory"):
        read(tmp_path / "keys.yaml")


def test_oversized_file_is_not_read_completely(tmp_path):
    path = tmp_path / "keys.yaml"
    path.write_bytes(b"#" * (MAX_BYTES + 1))

    with pytest.raises(InvalidKeysFile, match=f"larger than {MAX_BYTES} bytes"):
        read(path)


def test_nested_aliases_are_cheap():
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


@pytest.mark.slow
@settings(max_examples=scaled(150), deadline=None)
@given(st.binary(max_size=60) | st.lists(ENTRIES, max_size=2).map(lambda each: content(*each)))
def test_random_files(text):
    """They are valid, or rejected with one line."""
    for as_json in (False, True):
        found = outcome(text, as_json=as_json)
        if isinstance(found, str):
            assert "\n" not in found
        else:
            assert found == parse(render(found))
