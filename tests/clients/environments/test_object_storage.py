"""Buckets of real servers: moto for S3 and Google's XML API, and Azurite."""

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import obstore
import pytest

from openai_frontend.config.bucket_repositories import BucketRepository, parse
from openai_frontend.object_storage.bucket_reader import BucketReader, StoredObject, open_bucket
from openai_frontend.object_storage.copying import OTHERS, CopyReport, copy_repository
from openai_frontend.object_storage.errors import StorageError
from tests import mock_models
from tests.clients.environments import object_stores
from tests.clients.environments.object_stores import ACCOUNT_KEY, AzureServer, S3Server
from tests.clients.environments.slow_connection import slow_connection
from tests.gateway_process import COMMAND, GatewayProcess

pytestmark = pytest.mark.slow

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
_FOLDERS = [f"TRITON_{cloud}_MOUNT_DIRECTORY" for cloud in ("AWS", "GCS", "AZURE")]
_UNSET = ("TRITON_CLOUD_CREDENTIAL_PATH", "AWS_PROFILE", "AWS_SESSION_TOKEN", "AZURE_STORAGE_KEY")


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with object_stores.s3(tmp_path_factory.mktemp("s3"), "many") as server:
        yield server


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with object_stores.s3(tmp_path_factory.mktemp("gs"), "gs") as server:
        yield server


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    with object_stores.azure(tmp_path_factory.mktemp("as")) as server:
        yield server


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in _UNSET:
        monkeypatch.delenv(name, raising=False)
    for name in _FOLDERS:
        monkeypatch.setenv(name, str(tmp_path / "copies"))
    for name, text in KEYS.items():
        monkeypatch.setenv(name, text)


class Place(NamedTuple):
    """A folder of a bucket that no other test uses, as a model repository."""

    bucket: Any  # an obstore
    prefix: str
    repository: BucketRepository

    def put(self, path: str, content: bytes) -> None:
        obstore.put(self.bucket, f"{self.prefix}/{path}", content)

    def delete(self, path: str) -> None:
        obstore.delete(self.bucket, f"{self.prefix}/{path}")

    def copy(self) -> CopyReport:
        return asyncio.run(copy_repository(self.repository))

    def copied(self) -> dict[str, bytes]:
        models = self.repository.models()
        found = {}
        for root, _, files in os.walk(models, followlinks=True):
            for name in files:
                path = Path(root, name)
                found[str(path.relative_to(models))] = path.read_bytes()
        return found


@pytest.fixture(params=["s3", "google", "azure"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The same for each kind of bucket."""
    server = request.getfixturevalue(request.param)
    prefix = request.node.name.replace("[", "-").replace("]", "")
    if request.param == "azure":
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", server.endpoint)
        monkeypatch.setenv("AZURE_STORAGE_KEY", ACCOUNT_KEY)
    if request.param == "google":
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        return Place(server.bucket, prefix, parse(f"gs://models/{prefix}"))
    return Place(server.bucket, prefix, parse(f"{server.repository}/{prefix}"))


def test_repository_follows_its_bucket(place):
    """New, changed and deleted objects; names with characters that URLs encode."""
    place.put("m/1/model", b"one")
    place.put("m/1/a b%41?#+\u00e4", b"name")
    place.put("n/1/model", b"other")
    assert place.copy().problems() == {}
    assert place.copied() == {
        "m/1/model": b"one",
        "m/1/a b%41?#+\u00e4": b"name",
        "n/1/model": b"other",
    }

    place.put("m/1/model", b"new")
    place.put("m/2/model", b"two")
    place.delete("m/1/a b%41?#+\u00e4")
    place.delete("n/1/model")
    assert place.copy().problems() == {}
    assert place.copied() == {"m/1/model": b"new", "m/2/model": b"two"}


def test_download_resumes_by_range(place, monkeypatch):
    """With If-Match: of an object that was replaced, nothing is used again."""
    content = os.urandom(3_000_000)
    place.put("m/1/model", content)
    reads = []

    class Interrupted(BucketReader):
        async def read(self, stored: StoredObject, offset: int) -> AsyncGenerator[bytes, None]:
            reads.append(offset)
            async for chunk in super().read(stored, offset):
                yield chunk
                if len(reads) == 1:
                    raise StorageError("interrupted")

    def opened(repository: BucketRepository) -> BucketReader:
        reader = open_bucket(repository)
        reader.__class__ = Interrupted
        return reader

    monkeypatch.setattr("openai_frontend.object_storage.copying.open_bucket", opened)

    assert place.copy().problems() == {}
    assert len(reads) == 2
    assert 0 < reads[1] < len(content)
    assert place.copied() == {"m/1/model": content}


def test_half_written_objects(s3, tmp_path):
    """The object is replaced while a copy reads it: the copy has the new one only."""
    place = Place(s3.bucket, "half", parse(f"{s3.repository}/half"))
    old, new = os.urandom(3_000_000), os.urandom(3_000_000)
    place.put("m/1/model", old)
    with slow_connection(s3.port, limit=2_000_000) as slow:
        repository = parse(f"s3://127.0.0.1:{slow.port}/models/half")

        async def copy() -> CopyReport:
            copying = asyncio.ensure_future(copy_repository(repository))
            while not any(each.stat().st_size for each in tmp_path.rglob("*.part")):  # noqa: ASYNC110  of a file
                await asyncio.sleep(0.01)
            place.put("m/1/model", new)
            copying.cancel()
            await asyncio.wait([copying])
            slow.release()
            return await copy_repository(repository)

        assert asyncio.run(copy()).problems() == {}
    assert (repository.models() / "m" / "1" / "model").read_bytes() == new


def test_paths_that_leave_the_folder(s3, tmp_path):
    """Their models are refused by name; others are copied, and nothing is written elsewhere."""
    place = Place(s3.bucket, "paths", parse(f"{s3.repository}/paths"))
    for number, name in enumerate(("../../../x", "/x", "1//x", "a\\..\\x", "nul\0x", "./x")):
        place.put(f"m{number}/1/model", b"x")
        s3.put_raw(f"paths/m{number}/{name}")
    place.put("good/1/model", b"good")
    s3.put_raw("paths/good/2/", b"")  # an empty version, as consoles make it

    report = place.copy()

    assert report.refused.keys() == {f"m{number}" for number in range(6)}
    assert "'paths/m0/../'" in report.refused["m0"]
    assert place.copied() == {"good/1/model": b"good"}
    assert (place.repository.models() / "good" / "2").is_dir()
    assert {path.name for path in tmp_path.rglob("*x")} == set()


@pytest.mark.parametrize("name", ["../x", "./x"])
def test_path_that_leaves_the_repository(s3, name):
    """It is ignored with a warning that names it; all models are copied."""
    folder = f"outside{len(name)}"
    place = Place(s3.bucket, folder, parse(f"{s3.repository}/{folder}"))
    place.put("m/1/model", b"one")
    place.put("new/1/model", b"new")
    s3.put_raw(f"{folder}/{name}")

    report = place.copy()

    assert report.problems() == {}
    assert f"'{folder}/{name[:-1]}'" in report.ignored
    assert place.copied() == {"m/1/model": b"one", "new/1/model": b"new"}


def test_path_without_a_folder_name(s3):
    """It hides other models from the listing: known ones are updated, and new ones reported."""
    place = Place(s3.bucket, "empty", parse(f"{s3.repository}/empty"))
    place.put("m/1/model", b"one")
    place.copy()

    s3.put_raw("empty//x")
    place.put("m/1/model", b"two")
    report = place.copy()

    assert report.refused.keys() == {OTHERS}
    assert "'empty//x'" in report.refused[OTHERS]
    assert place.copied() == {"m/1/model": b"two"}
    shutil.rmtree(place.repository.folder())
    with pytest.raises(StorageError, match=r"no model can be found: .*'empty//x'"):
        place.copy()


def test_10000_objects(s3):
    """All pages of the listing are read, and only missing objects are fetched."""
    repository = parse(f"s3://127.0.0.1:{s3.port}/many")

    async def copy() -> list[str]:
        listing = await open_bucket(repository).listing("m")
        assert len(listing.files) == 10_000
        blobs = repository.folder() / "blobs"
        blobs.mkdir(parents=True)
        for path, stored in listing.files.items():
            blobs.joinpath(stored.digest).write_text(path.rpartition("/")[2])
        missing = [listing.files[f"{number % 3 + 1}/{number}"] for number in (0, 5_000, 9_999)]
        for each in missing:
            blobs.joinpath(each.digest).unlink()
        assert (await copy_repository(repository)).problems() == {}
        return [path.name for path in (repository.models() / "m").glob("*/*")]

    names = asyncio.run(copy())

    assert sorted(map(int, names)) == list(range(10_000))
    for number in (0, 5_000, 9_999):
        path = repository.models() / "m" / str(number % 3 + 1) / str(number)
        assert path.read_text() == str(number)


def fails(*arguments: str, **variables: str) -> str:
    """The only line that the command prints besides its log."""
    result = subprocess.run(
        [str(COMMAND), *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 1, result
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", [("serve", "--port=0"), ("check",)])
def test_expired_credentials_at_start(azure, command):
    """One line names the bucket and the cause, without the signature."""
    signature = azure.signature("2020-01-01T00:00:00Z")
    repository = f"--model-repository={azure.repository}"

    line = fails(*command, repository, AZURE_STORAGE_SAS_TOKEN=signature, **azure.environment)

    expected = f"openai-frontend: {azure.repository}: 403 Forbidden (AuthorizationFailure)"
    assert line == expected


def test_unreachable_bucket_at_start():
    line = fails("serve", "--port=0", "--model-repository=s3://127.0.0.1:1/models")

    assert line == "openai-frontend: s3://127.0.0.1:1/models: the connection was refused"


def wait_until(holds: Callable[[], bool], process: GatewayProcess) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, process.output()
        time.sleep(0.05)


def chats(process: GatewayProcess, model: str = "chat") -> bool:
    """Whether the model completes a chat; otherwise it is not loaded, or loads."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
    answer = httpx.post(f"{process.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code in (200, 404, 503), answer.text
    return answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 2


def answers(process: GatewayProcess, version: int) -> int:
    """The requests that this version has answered since it was loaded."""
    stats = httpx.get(f"{process.url}/v2/models/chat/versions/{version}/stats").json()
    return int(stats["model_stats"][0]["inference_stats"]["success"]["count"])


ALL_VERSIONS = mock_models.CONFIG + "version_policy { all {} }\n"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[S3Server]:
    """A server with a chat model, for a gateway."""
    folder = tmp_path / "server"
    folder.mkdir()
    with object_stores.s3(folder) as server:
        models = tmp_path / "models"
        mock_models.write_with_tokenizer(models, "chat", answer_tokens=2, config=ALL_VERSIONS)
        server.put(models)
        yield server


def gateway(server: S3Server, folder: Path, *options: str, **variables: str) -> GatewayProcess:
    return GatewayProcess(
        f"--model-repository={server.repository}",
        folder / "gateway.log",
        *options,
        environment={**KEYS, **variables},
    )


POLL = ("--model-control-mode=poll", "--repository-poll-secs=1")


def test_deleted_versions(own, tmp_path):
    """A gateway that polls loads a new version, and unloads it once it is deleted."""
    with gateway(own, tmp_path, *POLL) as process:
        process.wait_until_ready()
        assert chats(process, "chat@1")
        assert not chats(process, "chat@2")
        assert answers(process, 1) == 1

        shutil.copytree(tmp_path / "models/chat/1", tmp_path / "new/chat/2")
        own.put(tmp_path / "new")
        wait_until(lambda: chats(process, "chat@2"), process)
        assert answers(process, 1) == 1, "version 1 was loaded again"

        for path in (tmp_path / "new/chat/2").rglob("*"):
            if path.is_file():
                obstore.delete(own.bucket, str(path.relative_to(tmp_path / "new")))
        wait_until(lambda: not chats(process, "chat@2"), process)
        assert chats(process, "chat@1")


def test_explicit_load_copies_the_model(own, tmp_path):
    """A model that is new in the bucket is loaded by its name."""
    options = ("--model-control-mode=explicit", "--load-model=chat", "--enable-model-management")
    with gateway(own, tmp_path, *options) as process:
        process.wait_until_ready()
        shutil.copytree(tmp_path / "models/chat", tmp_path / "new/later")
        own.put(tmp_path / "new")

        answer = httpx.post(f"{process.url}/v1/models/later/load", timeout=60)

        assert answer.status_code == 200, answer.text
        assert chats(process, "later")


def test_expired_credentials_while_polling(own, tmp_path):
    """The models stay, the log has one warning without a secret, and a metric counts."""
    identity = own.identity()
    with gateway(own, tmp_path, *POLL, **identity.environment) as process:
        process.wait_until_ready()
        identity.revoke()

        def failures() -> float:
            text = httpx.get(f"{process.url}/metrics").text
            lines = [each for each in text.splitlines() if "bucket_copy_failures_total" in each]
            return float(lines[-1].rpartition(" ")[2])

        wait_until(lambda: failures() >= 2, process)
        assert chats(process)
        warnings = [line for line in process.output().splitlines() if "not updated" in line]
        assert len(warnings) == 1
        assert f"{own.repository}: all models" in warnings[0]
        assert "403 Forbidden (InvalidAccessKeyId)" in warnings[0]
        assert identity.secret not in process.output()


def test_stop_during_a_copy(own, tmp_path):
    """The gateway ends at once; the next start resumes."""
    with slow_connection(own.port, limit=2_000_000) as slow:
        repository = f"--model-repository=s3://127.0.0.1:{slow.port}/models"
        log = tmp_path / "gateway.log"
        with GatewayProcess(repository, log, *POLL, environment=KEYS) as process:
            process.wait_until_ready()
            obstore.put(own.bucket, "chat/2/weights", os.urandom(4_000_000), use_multipart=False)
            parts = (tmp_path / "copies").rglob
            wait_until(lambda: any(each.stat().st_size for each in parts("*.part")), process)

            began = time.monotonic()
            assert process.stop() == 0
            assert time.monotonic() - began < 15
        assert any(each.stat().st_size for each in parts("*.part"))
        assert "Traceback" not in process.output()


def test_interrupted_start(own, tmp_path):
    """Ctrl-C ends it with one line."""
    with slow_connection(own.port, limit=2_000_000) as slow:
        obstore.put(own.bucket, "chat/1/weights", os.urandom(4_000_000), use_multipart=False)
        repository = f"--model-repository=s3://127.0.0.1:{slow.port}/models"
        with GatewayProcess(repository, tmp_path / "log", environment=KEYS) as process:
            parts = (tmp_path / "copies").rglob
            wait_until(lambda: any(each.stat().st_size for each in parts("*.part")), process)

            assert process.stop() == 1
        assert (
            process.output()
            .splitlines()[-1]
            .endswith("/models: interrupted; the next start resumes the copy")
        )
        assert "Traceback" not in process.output()


def test_killed_process_resumes(own, tmp_path):
    """After SIGKILL in the middle of a download, the next start reads only what is missing."""
    weights = os.urandom(6_000_000)
    obstore.put(own.bucket, "chat/1/weights", weights, use_multipart=False)
    with slow_connection(own.port, limit=3_500_000) as slow:
        command = [
            str(COMMAND), "check", "chat", f"--model-repository=s3://127.0.0.1:{slow.port}/models",
        ]  # fmt: skip
        with subprocess.Popen(command, env={**os.environ, **KEYS}) as process:
            deadline = time.monotonic() + 60
            while not any(
                each.stat().st_size > 1_000_000 for each in (tmp_path / "copies").rglob("*.part")
            ):
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.02)
            process.kill()
        slow.release()
        before = len(slow.requests)

        assert subprocess.run(command, check=False, capture_output=True).returncode == 0
        head = slow.requests[before:].lower()
    assert b"range: bytes=" in head
    assert b"if-match:" in head
    (copy,) = (tmp_path / "copies").glob("buckets/*/models/chat/1/weights")
    assert copy.read_bytes() == weights
