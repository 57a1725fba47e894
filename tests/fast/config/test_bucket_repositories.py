"""URLs of buckets have tritonserver's spellings, and always the same local folder."""

from pathlib import Path
from typing import Any

import pytest

from openai_frontend.config.bucket_repositories import BucketRepository, parse
from openai_frontend.config.loader import InvalidSettings, load


def read(url: str) -> dict[str, Any]:
    """What is not default."""
    found = parse(url)
    names = ("bucket", "prefix", "endpoint", "account")
    return {name: getattr(found, name) for name in names if getattr(found, name)}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket", {"bucket": "bucket"}),
        ("s3://bucket/a/b/", {"bucket": "bucket", "prefix": "a/b"}),
        ("s3://bucket//a//b", {"bucket": "bucket", "prefix": "a/b"}),
        ("s3://my.bucket-1/models", {"bucket": "my.bucket-1", "prefix": "models"}),
        (
            "s3://host:9000/bucket/a",
            {"bucket": "bucket", "prefix": "a", "endpoint": "http://host:9000"},
        ),
        ("s3://10.0.0.1:9000/bucket", {"bucket": "bucket", "endpoint": "http://10.0.0.1:9000"}),
        ("s3://[::1]:9000/bucket", {"bucket": "bucket", "endpoint": "http://[::1]:9000"}),
        ("s3://http://host:9000/bucket", {"bucket": "bucket", "endpoint": "http://host:9000"}),
        (
            "s3://https://host:9000/bucket/a",
            {"bucket": "bucket", "prefix": "a", "endpoint": "https://host:9000"},
        ),
        (
            "s3://https://s3.example.com/bucket",
            {"bucket": "bucket", "endpoint": "https://s3.example.com"},
        ),
        ("gs://bucket/a", {"bucket": "bucket", "prefix": "a"}),
        ("as://account/container", {"bucket": "container", "account": "account"}),
        (
            "as://account.blob.core.windows.net/container/a/b",
            {"bucket": "container", "prefix": "a/b", "account": "account"},
        ),
    ],
)
def test_spellings(url, expected):
    assert read(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "s3://", "s3:///", "s3://https://host:9000", "s3://https://", "s3://host:99999/bucket",
        "s3://host:0/bucket", "s3://ftp://host:1/bucket", "s3://bu cket/a", "s3://bucket/a/../b",
        "s3://bucket/./b", "s3://bucket/a\nb", "gs://", "gs://b", "as://account", "as://a/container",
        "as://Account/container", "as://account.example.com/container",
    ],
)  # fmt: skip
def test_other_urls_are_refused(url):
    with pytest.raises(ValueError, match="must"):
        parse(url)


@pytest.mark.parametrize(
    "url", ["s3://KEY:SECRET@bucket/a", "as://account/container?sig=SECRET", "gs://bucket/a#SECRET"]
)
def test_url_with_a_secret_is_refused_without_repeating_it(url):
    with pytest.raises(InvalidSettings, match="without credentials, query and fragment") as caught:
        load(flags={"model_repository": [url]})
    assert "SECRET" not in str(caught.value)


def test_buckets_and_folders_may_be_mixed(monkeypatch):
    """The folders of buckets are copies below the cache, those of paths the paths themselves."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")

    settings = load(environment={"OPENAI_FRONTEND_MODEL_REPOSITORY": "models,gs://bucket/a"})

    assert settings.model_repository == [Path("models"), parse("gs://bucket/a")]
    assert settings.buckets() == [parse("gs://bucket/a")]
    local, copy = settings.repository_folders()
    assert local == Path("models")
    assert copy.is_relative_to("/cache/openai-frontend/buckets")


@pytest.mark.parametrize(
    ("variable", "url"),
    [
        ("TRITON_AWS_MOUNT_DIRECTORY", "s3://bucket"),
        ("TRITON_GCS_MOUNT_DIRECTORY", "gs://bucket"),
        ("TRITON_AZURE_MOUNT_DIRECTORY", "as://account/bucket"),
    ],
)
def test_tritonservers_variables_name_the_folder(monkeypatch, variable, url):
    monkeypatch.setenv(variable, "/mnt/copies")

    assert parse(url).folder().is_relative_to("/mnt/copies")


def test_each_repository_has_a_folder_of_its_own(monkeypatch):
    """Another spelling of a repository has the same folder; one within another has its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    urls = [
        "s3://bucket", "s3://bucket/a", "s3://bucket/a/b", "s3://host:1/bucket", "gs://bucket",
        "as://account/bucket", "as://other/bucket",
    ]  # fmt: skip

    folders = {parse(url).folder() for url in urls}

    assert len(folders) == len(urls)
    assert not any(each != other and each in other.parents for each in folders for other in folders)
    assert parse("s3://bucket//a/").folder() == parse("s3://bucket/a").folder()


def test_without_a_home_folder_the_variable_is_named(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError))

    with pytest.raises(ValueError, match="set TRITON_GCS_MOUNT_DIRECTORY"):
        BucketRepository(url="gs://bucket", scheme="gs", bucket="bucket").folder()
