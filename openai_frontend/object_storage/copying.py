"""Copies a bucket's models to its local repository: one pass over all models, or over one."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openai_frontend.config.bucket_repositories import BucketRepository
from openai_frontend.object_storage.bucket_reader import (
    BucketReader,
    ModelListing,
    StoredObject,
    open_bucket,
)
from openai_frontend.object_storage.downloads import fetch, is_fetched
from openai_frontend.object_storage.errors import ModelRefused, ObjectChanged, StorageError
from openai_frontend.object_storage.local_repository import (
    FolderContent,
    LocalRepository,
    ModelSnapshot,
)

logger = logging.getLogger(__name__)

_ATTEMPTS = 3  # while objects change
_DOWNLOADS = 16  # at once
OTHERS = "*"  # in a report: models that cannot be found


@dataclass(kw_only=True)
class CopyReport:
    """The models that are not as in the bucket. What was here before is kept."""

    refused: dict[str, str] = field(default_factory=dict)  # by the names of their objects
    failed: dict[str, str] = field(default_factory=dict)
    ignored: str = ""  # why an object beside the models is ignored

    def problems(self) -> Mapping[str, str]:
        return {**self.refused, **self.failed}


async def copy_repository(repository: BucketRepository, model: str | None = None) -> CopyReport:
    """Copy all models, or one. Raises StorageError if the bucket or the folder is unusable."""
    try:
        reader = open_bucket(repository)
        return await copy_models(reader, LocalRepository(repository.folder()), model)
    except OSError as error:
        raise StorageError(f"{error.filename or repository.folder()}: {error.strerror}") from None
    except ValueError as error:
        raise StorageError(str(error)) from None


async def copy_models(
    reader: BucketReader, local: LocalRepository, model: str | None = None
) -> CopyReport:
    """Raises StorageError or OSError."""
    async with local.lock():
        work = _Copy(reader, local)
        if model is not None:
            await work.copy_all([model])
            local.collect_garbage(needed=None)
            return work.report
        names = await work.names()
        await work.copy_all(names)
        for name in sorted(set(local.names()).difference(names)):
            logger.info("model %s was deleted in the bucket: removed its copy", name)
            local.remove(name)
        # The objects of a model with a problem may not be listed
        local.collect_garbage(None if work.report.problems() else work.needed)
        return work.report


class _Copy:
    """One pass over models."""

    def __init__(self, reader: BucketReader, local: LocalRepository) -> None:
        self._reader = reader
        self._local = local
        self._downloads = asyncio.Semaphore(_DOWNLOADS)
        self.needed: set[str] = set()  # blobs of the listed objects
        self.report = CopyReport()

    async def names(self) -> list[str]:
        """The models of the bucket. Those that are here if the name of an object hides others."""
        try:
            names, self.report.ignored = await self._reader.model_names()
            return names
        except ModelRefused as error:
            here = self._local.names()
            if not here:
                raise StorageError(f"no model can be found: {error}") from None
            self.report.refused[OTHERS] = f"new models cannot be found: {error}"
            return here

    async def copy_all(self, names: Sequence[str]) -> None:
        await _in_parallel(self._copy(name) for name in names)

    async def _copy(self, name: str) -> None:
        try:
            for _ in range(_ATTEMPTS):
                try:
                    await self._copy_as_listed(name)
                    return
                except ObjectChanged:
                    continue
            self.report.failed[name] = f"its objects changed during {_ATTEMPTS} attempts"
        except ModelRefused as error:
            self.report.refused[name] = str(error)
        except StorageError as error:
            self.report.failed[name] = str(error)

    async def _copy_as_listed(self, name: str) -> None:
        listing = await self._reader.listing(name)
        digests = {path: stored.digest for path, stored in listing.files.items()}
        self.needed.update(digests.values())
        if listing.files or listing.folders:
            snapshots = self._local.plan(name, FolderContent(digests, listing.folders))
            await self._fetch_missing(name, listing, self._local.missing(snapshots))
            if self._local.publish(snapshots):
                logger.info("model %s: its local copy is as in the bucket", name)
        elif name in self._local.names():
            self._local.remove(name)

    async def _fetch_missing(
        self, name: str, listing: ModelListing, snapshots: Sequence[ModelSnapshot]
    ) -> None:
        """Fetch the objects for snapshots that do not exist yet."""
        blobs = self._local.blobs
        used = {blob for each in snapshots for blob in each.content.files.values()}
        listed = [each for each in listing.files.values() if each.digest in used]
        missing = [each for each in listed if not is_fetched(blobs, each)]
        if not missing:
            return
        megabytes = sum(each.size for each in missing) / 1e6
        logger.info("model %s: fetching objects=%d megabytes=%.1f", name, len(missing), megabytes)
        began = time.monotonic()
        # After a failure the others end too: they resume the next time
        await _in_parallel(map(self._fetch, missing))
        logger.info("model %s: fetched in %.1f s", name, time.monotonic() - began)

    async def _fetch(self, stored: StoredObject) -> None:
        async with self._downloads:
            await fetch(self._reader, stored, self._local.blobs)


async def _in_parallel(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Raises the first failure, without a group around it."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for work in works:
                tasks.create_task(work)
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
