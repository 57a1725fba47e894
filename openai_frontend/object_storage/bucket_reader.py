"""Lists and reads the objects of a model repository. The only module that knows obstore."""

import asyncio
import hashlib
import os
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import obstore
from obstore.exceptions import BaseError, InvalidPathError, PreconditionError
from obstore.store import AzureStore, GCSStore, S3Store

from openai_frontend.config.bucket_repositories import BucketRepository
from openai_frontend.object_storage import object_names
from openai_frontend.object_storage.credentials import Config, store_config
from openai_frontend.object_storage.errors import (
    ModelRefused,
    ObjectChanged,
    StorageError,
    cause,
)

if TYPE_CHECKING:
    from obstore import GetOptions, ListResult, ObjectMeta
    from obstore.store import ObjectStore

_LISTINGS = 16  # at once
_BEHIND_DOTS = ".0"  # `0` follows `/` and `.`
_CHUNK_BYTES = 1024 * 1024
# A request may take hours: an object of 100 GB is one. A server that sends nothing is given up.
_CLIENT = {"connect_timeout": "5s", "read_timeout": "20s", "timeout": "7d"}
_RETRIES: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}


class StoredObject(NamedTuple):
    """An object as it was listed."""

    path: str  # from the repository
    size: int
    etag: str | None
    version: str  # changes with the content

    @property
    def digest(self) -> str:
        """Names the content."""
        return hashlib.sha256(f"{self.path}\0{self.version}\0{self.size}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ModelListing:
    """The objects of a model by path from the model's folder, and its folders."""

    files: Mapping[str, StoredObject]
    folders: frozenset[str]


class ModelNames(NamedTuple):
    """The models of a repository, and why an object beside them is ignored; empty without one."""

    names: list[str]
    ignored: str = ""


class BucketReader:
    """The objects of one repository. Used within one event loop."""

    def __init__(self, store: "ObjectStore", prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._listings = asyncio.Semaphore(_LISTINGS)

    async def model_names(self) -> "ModelNames":
        """The folders of the repository, without hidden ones. Raises ModelRefused if the name of an
        object beside them prevents it, or StorageError.
        """
        try:
            result = await self._list(self._prefix)
        except ModelRefused as error:
            return ModelNames(await self._names_behind_dots(), str(error))
        names = {path.rpartition("/")[2] for path in result["common_prefixes"]}
        return ModelNames(sorted(name for name in names if not name.startswith(".")))

    async def _names_behind_dots(self) -> list[str]:
        """obstore fails a listing that contains `../x` or `./x`. Those sort before models, so one
        that begins behind them has all models; but then it has all objects.
        """
        folder = f"{self._prefix}/" if self._prefix else ""
        names: set[str] = set()
        async with self._listings:
            with _translated():
                listed = obstore.list(self._store, folder or None, offset=f"{folder}{_BEHIND_DOTS}")
                async for batch in listed:
                    paths = [each["path"][len(folder) :] for each in batch]
                    names.update(path.partition("/")[0] for path in paths if "/" in path)
        return sorted(name for name in names if not name.startswith("."))

    async def listing(self, model: str) -> ModelListing:
        """Raises ModelRefused or StorageError."""
        _check_name("folder", model)
        root = f"{self._prefix}/{model}" if self._prefix else model
        objects, folders = await self._walk(root)
        cut = len(root) + 1
        files = {each["path"][cut:]: self._stored(each) for each in objects}
        inner = frozenset(path[cut:] for path in folders)
        for path in (*files, *inner):
            _check_name("object", path)
        # Azure and consoles of S3 represent a folder by an empty object of its name
        content = {path: file for path, file in files.items() if file.size or path not in inner}
        if (clash := object_names.clash(content, inner)) is not None:
            raise ModelRefused(f"'{clash}' is an object, and also a folder of objects")
        return ModelListing(content, inner)

    async def read(self, stored: StoredObject, offset: int) -> AsyncGenerator[bytes, None]:
        """The bytes from `offset`. Raises ObjectChanged if it is not the listed object any more."""
        options: GetOptions = {}
        if stored.etag is not None:
            options["if_match"] = stored.etag
        if offset:
            options["range"] = {"offset": offset}
        path = f"{self._prefix}/{stored.path}" if self._prefix else stored.path
        with _translated():
            result = await obstore.get_async(self._store, path, options=options)
            if result.meta["size"] != stored.size:
                raise ObjectChanged(stored.path)
            async for chunk in result.stream(min_chunk_size=_CHUNK_BYTES):
                yield bytes(chunk)

    async def _walk(self, folder: str) -> tuple[list["ObjectMeta"], list[str]]:
        """The objects below a folder, and the folders below it: those without objects too, such as
        an empty version, which a flat listing would show as an object.
        """
        result = await self._list(folder)
        objects = [each for each in result["objects"] if each["path"] != folder]
        folders = list(result["common_prefixes"])
        if not all(path.startswith(f"{folder}/") for path in folders):
            raise ModelRefused("an object has two slashes in a row in its name")
        for below, inner in await asyncio.gather(*map(self._walk, folders)):
            objects += below
            folders += inner
        return objects, folders

    async def _list(self, folder: str) -> "ListResult[Any]":
        async with self._listings:
            with _translated():
                return await obstore.list_with_delimiter_async(self._store, folder or None)

    def _stored(self, meta: "ObjectMeta") -> StoredObject:
        cut = len(self._prefix) + 1 if self._prefix else 0
        etag = meta["e_tag"]
        version = etag or meta["last_modified"].isoformat()
        return StoredObject(meta["path"][cut:], meta["size"], etag, version)


def _check_name(kind: str, path: str) -> None:
    if (problem := object_names.problem(path)) is not None:
        raise ModelRefused(f"the {kind} {object_names.shown(path)} is refused: {problem}")


def open_bucket(repository: BucketRepository) -> BucketReader:
    """Reads the credentials again. Raises StorageError."""
    config = store_config(repository)
    with _translated():
        return BucketReader(_store(repository, config), repository.prefix)


def _store(repository: BucketRepository, config: Config) -> "ObjectStore":
    options: Any = {**_CLIENT, "allow_http": _allows_http(repository, config)}
    common: Any = {"config": config, "client_options": options, "retry_config": _RETRIES}
    if repository.scheme == "s3":
        return S3Store(repository.bucket, **common)
    if repository.scheme == "gs":
        return GCSStore(repository.bucket, **common)
    return AzureStore(repository.bucket, **common)


# Endpoints that obstore reads from the environment
_ENDPOINTS: Mapping[str, tuple[str, ...]] = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "as": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}


def _allows_http(repository: BucketRepository, config: Config) -> bool:
    named = [config.get("endpoint"), config.get("base_url")]
    named += map(os.environ.get, _ENDPOINTS[repository.scheme])
    return any(each is not None and each.startswith("http://") for each in named)


_INVALID_PATH = re.compile(r'Path "(.*?)"(?: contained|: )', re.DOTALL)


def _refused_name(text: str) -> str:
    """For a name that obstore refuses, without any object of the same listing."""
    match = _INVALID_PATH.search(text)
    name = "" if match is None else f" {object_names.shown(match[1])}"
    return f"the object{name} is refused: its name is not a relative path"


@contextmanager
def _translated() -> Iterator[None]:
    """obstore's errors as ours; their texts may contain secrets."""
    try:
        yield
    except (PreconditionError, FileNotFoundError):
        raise ObjectChanged("an object was replaced or deleted") from None
    except InvalidPathError as error:
        raise ModelRefused(_refused_name(str(error))) from None
    except (BaseError, ValueError) as error:
        raise StorageError(cause(error)) from None
