"""The copies of a running gateway: off its event loop, with a log of problems, and an end."""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator
from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore

from openai_frontend.config.bucket_repositories import BucketRepository, parse
from openai_frontend.errors import ModelUnavailable
from openai_frontend.object_storage import copying
from openai_frontend.object_storage.bucket_copies import BucketCopies
from openai_frontend.object_storage.bucket_reader import BucketReader, ModelListing, StoredObject
from openai_frontend.object_storage.copying import copy_models
from openai_frontend.object_storage.errors import ModelRefused, StorageError
from openai_frontend.object_storage.local_repository import LocalRepository

BUCKET = parse("s3://bucket/models")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MemoryStore:
    made = MemoryStore()
    obstore.put(made, "m/1/model", b"one")
    monkeypatch.setenv("TRITON_AWS_MOUNT_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(copying, "open_bucket", lambda repository: BucketReader(made, ""))
    return made


@pytest.fixture
def copies(store: MemoryStore) -> BucketCopies:
    return BucketCopies([BUCKET], [BUCKET.models()])


def fail(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    def refuse(repository: BucketRepository) -> BucketReader:
        raise StorageError(reason)

    monkeypatch.setattr(copying, "open_bucket", refuse)


async def test_update_copies(copies):
    await copies.update()

    assert (BUCKET.models() / "m/1/model").read_bytes() == b"one"
    assert copies.failures == 0


async def test_problem_is_logged_once_and_its_end_too(copies, store, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "openai_frontend.object_storage.bucket_copies")
    await copies.update()
    with monkeypatch.context() as patch:
        fail(patch, "403 Forbidden (ExpiredToken)")
        for _ in range(3):
            await copies.update()
    await copies.update()

    assert caplog.messages == [
        "s3://bucket/models: all models: not updated: 403 Forbidden (ExpiredToken)",
        "s3://bucket/models: all models: updated again",
    ]
    assert copies.failures == 3
    assert (BUCKET.models() / "m/1/model").read_bytes() == b"one"


async def test_model_without_a_copy_is_unavailable(copies, monkeypatch):
    """One with a copy loads it, and so does a model of another repository."""
    await copies.update_model("m")
    fail(monkeypatch, "the connection was refused")

    await copies.update_model("m")
    with pytest.raises(ModelUnavailable, match="from s3://bucket/models: the connection was ref"):
        await copies.update_model("n")


def ensemble(*steps: str) -> bytes:
    text = ", ".join(f'{{ model_name: "{step}" model_version: -1 }}' for step in steps)
    head = 'platform: "ensemble"\n# model_name: "old"\n'
    return f"{head}ensemble_scheduling {{ step [{text}] }}".encode()


async def test_ensemble_is_copied_with_its_steps(copies, store):
    """And with those of an ensemble within it; others stay where they are."""
    configs = {"outer": ensemble("m", "inner"), "inner": ensemble("last", "outer")}
    for name in ("outer", "inner", "last", "other", "old"):
        obstore.put(store, f"{name}/config.pbtxt", configs.get(name, b""))

    await copies.update_model("outer")

    assert {path.name for path in BUCKET.models().iterdir()} == {"outer", "m", "inner", "last"}


async def test_step_without_a_copy_is_unavailable(copies, store, monkeypatch):
    """The error names the step."""
    obstore.put(store, "outer/config.pbtxt", ensemble("m", "bad"))
    listing = BucketReader.listing

    async def refuse(self: BucketReader, model: str) -> ModelListing:
        if model == "bad":
            raise ModelRefused("the object is refused")
        return await listing(self, model)

    monkeypatch.setattr(BucketReader, "listing", refuse)
    with pytest.raises(ModelUnavailable, match="model 'bad' cannot be copied"):
        await copies.update_model("outer")


async def test_close_ends_a_copy(copies, monkeypatch, caplog):
    """At shutdown nothing waits for a download, which resumes at the next start."""
    reads = threading.Event()

    async def forever(
        self: BucketReader, stored: StoredObject, offset: int
    ) -> AsyncGenerator[bytes, None]:
        yield b"o"
        reads.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(BucketReader, "read", forever)
    updating = asyncio.create_task(copies.update())
    assert await asyncio.to_thread(reads.wait, 60)

    await copies.close()
    await updating
    await copies.update()  # refused from now on

    (part,) = (BUCKET.folder() / "blobs").iterdir()
    assert part.read_bytes() == b"o"
    assert not list(BUCKET.models().iterdir())
    assert caplog.messages == []


@pytest.mark.slow
def test_10000_objects(tmp_path):
    """All are copied in seconds, and then found unchanged."""
    store = MemoryStore()
    for number in range(10_000):
        obstore.put(store, f"m{number % 7}/{number % 3 + 1}/{number}", b"%d" % number)

    report = asyncio.run(copy_models(BucketReader(store, ""), LocalRepository(tmp_path)))
    before = {path.name: path.stat().st_ctime_ns for path in (tmp_path / "blobs").iterdir()}
    asyncio.run(copy_models(BucketReader(store, ""), LocalRepository(tmp_path)))

    assert report.problems() == {}
    texts = [path.read_text() for path in tmp_path.glob("models/*/*/*")]
    assert sorted(map(int, texts)) == list(range(10_000))
    assert before == {path.name: path.stat().st_ctime_ns for path in (tmp_path / "blobs").iterdir()}
