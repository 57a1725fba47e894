"""A bucket is copied to a local folder: only what changed, model by model, atomically."""

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from openai_frontend.object_storage import downloads
from openai_frontend.object_storage.bucket_reader import BucketReader, StoredObject
from openai_frontend.object_storage.copying import OTHERS, CopyReport, copy_models
from openai_frontend.object_storage.errors import ModelRefused, StorageError
from openai_frontend.object_storage.local_repository import LocalRepository


class ConnectionEnds(Exception):
    """Ends an answer early, without an error."""


class Reader(BucketReader):
    """Records what is read, and fails as a test asks."""

    def __init__(self, store: MemoryStore, prefix: str = "") -> None:
        super().__init__(store, prefix)
        self.reads: list[tuple[str, int]] = []
        self.before_read: Callable[[StoredObject], None] = lambda stored: None
        self.after_bytes: Callable[[StoredObject, int], None] = lambda stored, count: None

    async def read(self, stored: StoredObject, offset: int) -> AsyncGenerator[bytes, None]:
        self.reads.append((stored.path, offset))
        self.before_read(stored)
        async for chunk in super().read(stored, offset):
            for start in range(0, len(chunk), 4):
                try:
                    self.after_bytes(stored, offset + start)
                except ConnectionEnds:
                    return
                await asyncio.sleep(0)
                yield chunk[start : start + 4]


class Bucket:
    """A bucket in memory, and its copy."""

    def __init__(self, folder: Path) -> None:
        self.store = MemoryStore()
        self.folder = folder
        self.models = folder / "models"
        self.reader = Reader(self.store)
        self._task: asyncio.Task[CopyReport] | None = None

    def put(self, **objects: str) -> None:
        for path, text in objects.items():
            obstore.put(self.store, path.replace("__", "/"), text.encode())

    def delete(self, *paths: str) -> None:
        obstore.delete(self.store, paths)

    def copy(self, model: str | None = None, prefix: str = "") -> CopyReport:
        """Reads are recorded from here on."""
        new = Reader(self.store, prefix)
        new.before_read, new.after_bytes = self.reader.before_read, self.reader.after_bytes
        self.reader = new
        return asyncio.run(self._copy(model))

    async def _copy(self, model: str | None) -> CopyReport:
        self._task = asyncio.current_task()
        return await copy_models(self.reader, LocalRepository(self.folder), model)

    def interrupt(self, stored: StoredObject, count: int) -> None:
        """As a signal, or the end of the gateway does."""
        if count == 8 and self._task is not None:
            self._task.cancel()

    def copied(self) -> dict[str, str]:
        """Path -> text, through all links."""
        found = {}
        for root, _, files in os.walk(self.models, followlinks=True):
            for name in files:
                path = Path(root, name)
                found[str(path.relative_to(self.models))] = path.read_text()
        return found

    def leftovers(self) -> set[str]:
        """Files below `blobs` and `snapshots` that no model has."""
        used = {path.stat().st_ino for path in map(self.models.joinpath, self.copied())}
        files = [*(self.folder / "blobs").iterdir(), *(self.folder / "snapshots").rglob("*")]
        return {path.name for path in files if path.is_file() and path.stat().st_ino not in used}


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    made = Bucket(tmp_path / "copy")
    made.put(m__config="c", m__1__model="one", n__1__model="other")
    return made


@pytest.fixture(autouse=True)
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "_FIRST_DELAY_S", 0.0)


EXPECTED = {"m/config": "c", "m/1/model": "one", "n/1/model": "other"}


def test_models_are_copied(bucket):
    bucket.put(README="not a model", **{".hidden__x": "not either"})

    assert bucket.copy().problems() == {}
    assert bucket.copied() == EXPECTED
    assert bucket.leftovers() == set()


def test_prefix_is_the_repository(bucket):
    bucket.put(deep__er__m__1__model="deep")

    bucket.copy(prefix="deep/er")

    assert bucket.copied() == {"m/1/model": "deep"}


def test_unchanged_objects_are_not_fetched_again(bucket):
    bucket.copy()

    bucket.copy()

    assert bucket.reader.reads == []
    assert bucket.copied() == EXPECTED


def test_only_the_changed_version_is_replaced(bucket):
    """Triton's core reloads versions by the times of their files and folders."""
    bucket.put(m__2__model="two", m__2__labels="kept")
    bucket.copy()
    before = {name: (bucket.models / "m" / name).stat() for name in ("1", "2")}

    bucket.put(m__2__model="new")
    bucket.copy()

    after = {name: (bucket.models / "m" / name).stat() for name in ("1", "2")}
    assert bucket.reader.reads == [("m/2/model", 0)]
    assert bucket.copied()["m/2/model"] == "new"
    assert (before["1"].st_ino, before["1"].st_ctime_ns) == (
        after["1"].st_ino,
        after["1"].st_ctime_ns,
    )
    assert before["2"].st_ino != after["2"].st_ino
    assert bucket.leftovers() == set()


def test_deleted_versions(bucket):
    """A version and a model that are deleted in the bucket are deleted here."""
    bucket.put(m__2__model="two")
    bucket.copy()

    bucket.delete("m/1/model", "n/1/model")
    bucket.copy()

    assert bucket.copied() == {"m/config": "c", "m/2/model": "two"}
    assert [path.name for path in bucket.models.iterdir()] == ["m"]
    assert bucket.leftovers() == set()


def test_one_model(bucket):
    """Copies or removes one model, and leaves the others."""
    bucket.copy()
    bucket.put(m__1__model="new", n__1__model="new")

    bucket.copy("m")
    assert bucket.copied() == {**EXPECTED, "m/1/model": "new"}

    bucket.delete("m/config", "m/1/model")
    bucket.copy("m")
    assert bucket.copied() == {"n/1/model": "other"}
    assert bucket.copy("unknown").problems() == {}


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("m/..\\..\\x", "the object '..\\..\\x' is refused: it has a backslash"),
        ("m/1", "'1' is an object, and also a folder of objects"),
        ("m/\u2028", "the object '\\u2028' is refused: it has a character that is not printable"),
    ],
)
def test_model_with_refused_names_stays_as_it_was(bucket, path, reason):
    bucket.copy()
    obstore.put(bucket.store, path, b"x")
    bucket.put(m__1__model="new", n__1__model="new")

    report = bucket.copy()

    assert report.refused == {"m": reason}
    assert bucket.copied() == {**EXPECTED, "n/1/model": "new"}


def test_folder_marker_is_not_an_object(bucket):
    """Azure's hierarchical namespaces, and tools of S3, have an empty object for a folder."""
    obstore.put(bucket.store, "m/1", b"")

    assert bucket.copy().problems() == {}
    assert bucket.copied() == EXPECTED


def test_name_that_hides_other_models(bucket, monkeypatch):
    """Known models are still updated; without any, the copy fails."""

    async def refuse(self: BucketReader) -> list[str]:
        raise ModelRefused("'../x'")

    with monkeypatch.context() as patch:
        patch.setattr(BucketReader, "model_names", refuse)
        with pytest.raises(StorageError, match=r"no model can be found: '\.\./x'"):
            bucket.copy()
    bucket.copy()
    bucket.put(m__1__model="new", o__1__model="hidden")
    monkeypatch.setattr(BucketReader, "model_names", refuse)

    assert bucket.copy().refused == {OTHERS: "new models cannot be found: '../x'"}
    assert bucket.copied() == {**EXPECTED, "m/1/model": "new"}


def test_name_beside_the_models_is_ignored(bucket, monkeypatch):
    """obstore fails the listing of all folders; models are found behind the name."""
    bucket.put(**{"repo__..x": "", "repo__a__1__model": "one", "repo__.hidden__1__model": "no"})
    walk = BucketReader._list

    async def refuse(self: BucketReader, folder: str) -> Any:
        if folder == "repo":
            raise ModelRefused("the object '../x' is refused")
        return await walk(self, folder)

    monkeypatch.setattr(BucketReader, "_list", refuse)
    report = bucket.copy(prefix="repo")

    assert report.problems() == {}
    assert report.ignored == "the object '../x' is refused"
    assert bucket.copied() == {"a/1/model": "one"}


@pytest.fixture
def interrupted(bucket: Bucket) -> Bucket:
    bucket.put(m__1__model="0123456789" * 40)
    bucket.reader.after_bytes = bucket.interrupt
    with pytest.raises(asyncio.CancelledError):
        bucket.copy("m")
    bucket.reader.after_bytes = lambda stored, count: None
    return bucket


def test_interrupted_download_resumes(interrupted):
    """Only the missing bytes are read."""
    interrupted.copy()

    (offset,) = [start for path, start in interrupted.reader.reads if path == "m/1/model"]
    assert 8 <= offset < 400
    assert interrupted.copied()["m/1/model"] == "0123456789" * 40
    assert interrupted.leftovers() == set()


def test_interrupted_download_of_a_replaced_object_starts_again(interrupted):
    interrupted.put(m__1__model="abcdefghij" * 40)

    interrupted.copy()

    assert ("m/1/model", 0) in interrupted.reader.reads
    assert interrupted.copied()["m/1/model"] == "abcdefghij" * 40
    assert interrupted.leftovers() == set()


def test_half_written_objects(bucket):
    """A connection that ends early is continued, and never a file that looks complete."""
    bucket.put(m__1__model="0123456789")
    failures = iter([4, 8])
    at = next(failures)

    def end(stored: StoredObject, count: int) -> None:
        nonlocal at
        if count == at:
            at = next(failures, -1)
            raise ConnectionEnds

    bucket.reader.after_bytes = end
    assert bucket.copy("m").problems() == {}

    assert [offset for path, offset in bucket.reader.reads if path == "m/1/model"] == [0, 4, 8]
    assert bucket.copied()["m/1/model"] == "0123456789"


def test_server_without_ranges(interrupted):
    """The download starts again."""

    def refuse(stored: StoredObject) -> None:
        if interrupted.reader.reads[-1][1]:
            raise StorageError("the answer is not a range")

    interrupted.reader.before_read = refuse
    assert interrupted.copy("m").problems() == {}

    assert interrupted.reader.reads[-1] == ("m/1/model", 0)
    assert interrupted.copied()["m/1/model"] == "0123456789" * 40


def test_server_that_always_fails(bucket):
    """The model stays as it was, the attempts are bounded, and other models are copied."""
    bucket.copy()
    bucket.put(m__1__model="new", n__1__model="new")

    def fail(stored: StoredObject) -> None:
        if stored.path == "m/1/model":
            raise StorageError("403 Forbidden (ExpiredToken)")

    bucket.reader.before_read = fail
    report = bucket.copy()

    assert report.failed == {"m": "403 Forbidden (ExpiredToken)"}
    assert bucket.reader.reads.count(("m/1/model", 0)) == 4
    assert bucket.copied() == {**EXPECTED, "n/1/model": "new"}


def test_object_replaced_after_the_listing_is_listed_again(bucket):
    def replace(stored: StoredObject) -> None:
        if stored.path == "m/1/model" and bucket.reader.reads.count(("m/1/model", 0)) == 1:
            bucket.put(m__1__model="eno")  # of the same size

    bucket.reader.before_read = replace

    assert bucket.copy().problems() == {}
    assert bucket.copied() == {**EXPECTED, "m/1/model": "eno"}


def test_object_deleted_after_each_listing_is_reported(bucket):
    def delete(stored: StoredObject) -> None:
        if stored.path == "m/1/model":
            bucket.delete("m/1/model")
            bucket.put(m__1__model="again")
            obstore.put(bucket.store, "m/1/model", os.urandom(8))

    bucket.reader.before_read = delete

    assert bucket.copy().failed == {"m": "its objects changed during 3 attempts"}
    assert bucket.copied() == {"n/1/model": "other"}


def test_reader_never_sees_half_a_model(tmp_path):
    """Whoever has opened the model's folder sees one content of it, while others replace it."""
    bucket = Bucket(tmp_path)
    local = LocalRepository(tmp_path)
    seen = set()
    for number in range(20):
        bucket.put(m__config=f"{number}", m__1__model=f"{number}")
        bucket.copy()
        opened = os.open(bucket.models / "m", os.O_DIRECTORY)
        bucket.put(m__config="newer", m__1__model="newer")
        local.collect_garbage = lambda needed: None  # type: ignore[method-assign]
        asyncio.run(copy_models(Reader(bucket.store), local))
        texts = []
        for name in ("config", "1/model"):
            with open(os.open(name, os.O_RDONLY, dir_fd=opened)) as file:
                texts.append(file.read())
        os.close(opened)
        seen.add(tuple(texts))

    assert seen == {(f"{number}", f"{number}") for number in range(20)}


def test_old_model_is_there_until_the_new_one_is_complete(bucket, monkeypatch):
    """One rename replaces it."""
    bucket.copy()
    replace, seen = Path.replace, []

    def record(self: Path, target: Path) -> Path:
        if target == bucket.models / "m":
            texts = [path / "1" / "model" for path in (target, target.parent / os.readlink(self))]
            seen.append([path.read_text() for path in texts])
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", record)
    bucket.put(m__1__model="new")
    bucket.copy()

    assert seen == [["one", "new"]]


def test_two_gateways_share_a_folder(bucket):
    """One copies; the other waits, and finds everything."""

    async def both() -> tuple[Reader, Reader]:
        readers = Reader(bucket.store), Reader(bucket.store)
        copies = (copy_models(each, LocalRepository(bucket.folder)) for each in readers)
        await asyncio.gather(*copies)
        return readers

    first, second = asyncio.run(both())

    assert sorted([len(first.reads), len(second.reads)]) == [0, 3]
    assert bucket.copied() == EXPECTED


def test_file_system_without_hard_links(bucket, monkeypatch):
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "hardlink_to", refuse)

    bucket.put(m__2__model="two")
    bucket.copy()
    bucket.put(m__2__model="new")
    bucket.copy()

    assert bucket.copied() == {**EXPECTED, "m/2/model": "new"}
    assert ("m/1/model", 0) not in bucket.reader.reads
    bucket.copy()
    assert bucket.reader.reads == []


def test_copy_may_be_moved(bucket, tmp_path):
    """Links are relative: a volume may be mounted elsewhere."""
    bucket.copy()

    bucket.folder = Path(shutil.move(bucket.folder, tmp_path / "moved"))
    bucket.models = bucket.folder / "models"

    assert bucket.copied() == EXPECTED


def test_unusable_folder(bucket):
    bucket.folder.write_text("a file")

    with pytest.raises(OSError, match="exists"):
        bucket.copy()
