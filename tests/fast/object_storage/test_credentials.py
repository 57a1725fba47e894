"""Credentials come from tritonserver's sources, and appear in no message."""

import json
from pathlib import Path

import pytest

from openai_frontend.config.bucket_repositories import parse
from openai_frontend.object_storage.credentials import store_config
from openai_frontend.object_storage.errors import StorageError, cause

VARIABLES = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION",
    "AWS_REGION", "AWS_PROFILE", "GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST",
    "AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY", "AZURE_STORAGE_AUTH_TYPE",
    "AZURE_STORAGE_CLIENT_ID", "AZURE_STORAGE_SAS_TOKEN", "TRITON_CLOUD_CREDENTIAL_PATH",
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


S3_KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.mark.parametrize(
    ("url", "environment", "expected"),
    [
        # obstore reads the variables of the keys itself
        ("s3://bucket", S3_KEYS, {}),
        ("s3://bucket", {**S3_KEYS, "AWS_REGION": "eu-west-1"}, {"region": "eu-west-1"}),
        (
            "s3://h:1/bucket",
            S3_KEYS,
            {"endpoint": "http://h:1", "virtual_hosted_style_request": False},
        ),
        ("gs://bucket", {}, {}),
        (
            "gs://bucket",
            {"GOOGLE_APPLICATION_CREDENTIALS": "/a.json"},
            {"application_credentials": "/a.json"},
        ),
        (
            "gs://bucket",
            {"STORAGE_EMULATOR_HOST": "h:1"},
            {"base_url": "http://h:1", "skip_signature": True},
        ),
        ("as://acc/cont", {}, {"account_name": "acc", "skip_signature": True}),
        (
            "as://acc/cont",
            {"AZURE_STORAGE_KEY": "a2V5"},
            {"account_name": "acc", "account_key": "a2V5"},
        ),
        (
            "as://acc/cont",
            {"AZURE_STORAGE_ACCOUNT": "other", "AZURE_STORAGE_KEY": "a"},
            {"account_name": "other", "account_key": "a"},
        ),
        ("as://acc/cont", {"AZURE_STORAGE_SAS_TOKEN": "sv=1"}, {"account_name": "acc"}),
        (
            "as://acc/cont",
            {"AZURE_STORAGE_AUTH_TYPE": "managed_identity"},
            {"account_name": "acc", "credential_type": "managed_identity"},
        ),
        (
            "as://acc/cont",
            {"AZURE_STORAGE_AUTH_TYPE": "managed_identity", "AZURE_STORAGE_CLIENT_ID": "me"},
            {"account_name": "acc", "credential_type": "managed_identity", "client_id": "me"},
        ),
        (
            "as://acc/cont",
            {"AZURE_STORAGE_AUTH_TYPE": "default", "AZURE_STORAGE_KEY": "a"},
            {"account_name": "acc"},
        ),
    ],
)
def test_environment(monkeypatch, url, environment, expected):
    for name, text in environment.items():
        monkeypatch.setenv(name, text)

    assert store_config(parse(url)) == expected


FILE = {
    "s3": {
        "": {"key_id": "id", "secret_key": "s", "region": "r", "session_token": "", "profile": ""},
        "s3://bucket-2": {"key_id": "id2", "secret_key": "s2", "session_token": "t2"},
        "s3://bucket-2/a": {"key_id": "id3", "secret_key": "s3"},
        "s3://profile": {"profile": "team"},
    },
    "gs": {"gs://bucket-2": "/two.json"},
    "as": {
        "as://acc/cont": {"account_str": "other", "account_key": "a"},
        "as://mi/cont": {"account_str": "", "auth_type": "managed_identity", "client_id": "me"},
    },
}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket", {"access_key_id": "id", "secret_access_key": "s", "region": "r"}),
        (
            "s3://bucket-2",
            {"access_key_id": "id2", "secret_access_key": "s2", "session_token": "t2"},
        ),
        ("s3://bucket-2/a/b", {"access_key_id": "id3", "secret_access_key": "s3"}),
        (
            "s3://profile",
            {"access_key_id": "team-id", "secret_access_key": "team-s", "region": "team-r"},
        ),
        ("gs://bucket-2/a", {"application_credentials": "/two.json"}),
        ("as://acc/cont/a", {"account_name": "other", "account_key": "a"}),
        ("as://mi1/cont", None),
    ],
)
def test_longest_name_in_tritonservers_file_wins(monkeypatch, tmp_path, url, expected):
    """The environment's own credentials are ignored then, as in tritonserver."""
    (tmp_path / "credentials").write_text(
        "[team]\naws_access_key_id = team-id\naws_secret_access_key = team-s\n"
    )
    (tmp_path / "config").write_text("[profile team]\nregion = team-r\n")
    (tmp_path / "cloud.json").write_text(json.dumps(FILE))
    monkeypatch.setenv("TRITON_CLOUD_CREDENTIAL_PATH", str(tmp_path / "cloud.json"))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/ignored.json")
    monkeypatch.setenv("AZURE_STORAGE_KEY", "ignored")

    if expected is None:
        with pytest.raises(StorageError, match="has no entry for as://mi1/cont"):
            store_config(parse(url))
    else:
        assert store_config(parse(url)) == expected


def test_default_profile_needs_no_variable(tmp_path):
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = id\naws_secret_access_key = s\naws_session_token = t\n"
    )

    assert store_config(parse("s3://bucket")) == {
        "access_key_id": "id",
        "secret_access_key": "s",
        "session_token": "t",
    }


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file or directory"),
        ("{SECRET", "is not JSON"),
        ('["SECRET"]', "has no entry for s3://bucket"),
        ('{"s3": "SECRET"}', "has no entry for s3://bucket"),
        ('{"s3": {"": "SECRET"}}', "an entry must be an object with texts"),
        ('{"s3": {"": {"key_id": 1, "secret_key": "SECRET"}}}', "an entry must be an object"),
        ('{"s3": {"": {"profile": "nobody", "secret_key": "SECRET"}}}', "profile 'nobody' has no"),
    ],
)
def test_unusable_file_is_named_without_its_secrets(monkeypatch, tmp_path, content, reason):
    path = tmp_path / "cloud.json"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("TRITON_CLOUD_CREDENTIAL_PATH", str(path))

    with pytest.raises(StorageError, match=reason) as caught:
        store_config(parse("s3://bucket"))
    assert "SECRET" not in str(caught.value)


def test_unknown_kind_of_azure_credentials_is_refused(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_AUTH_TYPE", "SECRET")

    with pytest.raises(StorageError, match="must be key, managed_identity or default"):
        store_config(parse("as://acc/cont"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "GET https://a/?sig=SECRET - status code: 403 Forbidden: <Code>ExpiredToken</Code>",
            "403 Forbidden (ExpiredToken)",
        ),
        ("PUT http://169.254.169.254/latest/api/token: SECRET", "no credentials were found"),
        (
            "HTTP error: ... source: ConnectError(Connection refused), SECRET",
            "the connection was refused",
        ),
        ("status code: 500 Internal Server Error: SECRET", "500 Internal Server Error"),
        ("SECRET", "the server did not answer as expected"),
    ],
)
def test_causes_are_facts_of_an_error_and_never_its_text(text, expected):
    assert cause(Exception(text)) == expected
