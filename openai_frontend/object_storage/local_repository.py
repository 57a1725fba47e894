"""The local copy of a bucket: complete models, replaced atomically.

    blobs/DIGEST             an object's bytes; DIGEST.part is unfinished
    snapshots/DIGEST/NAME    a model or a version: files are hard links to blobs
    models/NAME              symbolic link to the model's snapshot: what Triton's core reads
    lock                     held while one process changes the folder

A version folder is a snapshot of its own, to which those of its model link. It stays the same if
another version changes, so that the core reloads only versions that changed: it compares the times
at which files and folders changed, and a new hard link counts.
"""

import asyncio
import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from uuid import uuid4

from openai_frontend.object_storage.downloads import UNFINISHED

logger = logging.getLogger(__name__)

_LOCK_POLL_S = 0.1


class FolderContent(NamedTuple):
    """The files and folders of a folder, by path."""

    files: Mapping[str, str]  # -> digest of the blob
    folders: Collection[str]

    def below(self, folder: str) -> "FolderContent":
        start = f"{folder}/"
        return FolderContent(
            {
                path[len(start) :]: blob
                for path, blob in self.files.items()
                if path.startswith(start)
            },
            [path[len(start) :] for path in self.folders if path.startswith(start)],
        )

    def without(self, tops: Collection[str]) -> "FolderContent":
        return FolderContent(
            {path: blob for path, blob in self.files.items() if _top(path) not in tops},
            [path for path in self.folders if _top(path) not in tops],
        )


def _top(path: str) -> str:
    return path.partition("/")[0]


class ModelSnapshot(NamedTuple):
    """A folder that never changes."""

    name: str
    content: FolderContent
    links: Mapping[str, str]  # version -> digest of its snapshot
    digest: str


def _snapshot(name: str, content: FolderContent, links: Mapping[str, str]) -> ModelSnapshot:
    facts = [name, sorted(content.files.items()), sorted(content.folders), sorted(links.items())]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return ModelSnapshot(name, content, links, digest)


class LocalRepository:
    """Used under its lock, except for `names`. Each method may raise OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.blobs = folder / "blobs"
        self._snapshots = folder / "snapshots"
        self._models = folder / "models"

    @asynccontextmanager
    async def lock(self) -> AsyncGenerator[None, None]:
        """Create the folders, and wait until no other process changes them."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in (self.blobs, self._snapshots, self._models):
            each.mkdir(exist_ok=True)
        with (self._folder / "lock").open("a") as file:
            waits = False
            while not _locks(file.fileno()):
                if not waits:
                    logger.info("waiting for another process that copies to %s", self._folder)
                waits = True
                await asyncio.sleep(_LOCK_POLL_S)
            yield  # the kernel releases the lock when the file is closed, or the process dies

    def names(self) -> list[str]:
        """The models that are complete."""
        if not self._models.is_dir():
            return []
        return sorted(path.name for path in self._models.iterdir() if path.is_symlink())

    def plan(self, model: str, content: FolderContent) -> list[ModelSnapshot]:
        """The snapshots of the model: those of its versions, then its own."""
        versions = sorted({_top(path) for path in content.folders if _top(path).isdecimal()})
        parts = [_snapshot(each, content.below(each), {}) for each in versions]
        links = {each.name: each.digest for each in parts}
        return [*parts, _snapshot(model, content.without(versions), links)]

    def missing(self, snapshots: Iterable[ModelSnapshot]) -> list[ModelSnapshot]:
        return [each for each in snapshots if not (self._snapshots / each.digest).is_dir()]

    def publish(self, snapshots: Sequence[ModelSnapshot]) -> bool:
        """Replace a model by its plan, whose blobs are complete. False if it is the same."""
        for each in self.missing(snapshots):
            self._build(each)
        model = snapshots[-1]
        link, target = self._models / model.name, f"../snapshots/{model.digest}/{model.name}"
        if link.is_symlink() and os.readlink(link) == target:
            return False
        unnamed = self._folder / f"link-{uuid4().hex}"
        unnamed.symlink_to(target)
        unnamed.replace(link)
        return True

    def remove(self, model: str) -> None:
        (self._models / model).unlink()

    def collect_garbage(self, needed: Collection[str] | None) -> None:
        """Delete snapshots without a model, and blobs that are not `needed`.

        None keeps every blob: it is not known which ones other models need.
        """
        live = set(self._live_snapshots())
        for path in self._snapshots.iterdir():
            if path.name not in live:
                shutil.rmtree(path)
        if needed is not None:
            self._delete_blobs(needed)
        for path in self._folder.glob("link-*"):
            path.unlink()

    def _delete_blobs(self, needed: Collection[str]) -> None:
        for path in self.blobs.iterdir():
            if path.name.removesuffix(UNFINISHED) not in needed:
                path.unlink()

    def _live_snapshots(self) -> Iterator[str]:
        for model in self._models.iterdir():
            if not model.is_symlink():
                continue
            yield PurePosixPath(os.readlink(model)).parts[-2]
            for each in model.iterdir() if model.is_dir() else ():
                if each.is_symlink():
                    yield PurePosixPath(os.readlink(each)).parts[-2]

    def _build(self, snapshot: ModelSnapshot) -> None:
        unnamed = self._snapshots / f"unfinished-{uuid4().hex}"
        root = unnamed / snapshot.name
        root.mkdir(parents=True)
        for folder in sorted(snapshot.content.folders):
            (root / folder).mkdir(parents=True, exist_ok=True)
        for path, blob in snapshot.content.files.items():
            _link(self.blobs / blob, root / path)
        # Only versions: Triton's core refuses files of labels outside of the model's own folder
        for version, digest in snapshot.links.items():
            (root / version).symlink_to(f"../../{digest}/{version}")
        unnamed.rename(self._snapshots / snapshot.digest)


def _locks(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _link(blob: Path, path: Path) -> None:
    """A copy if the file system has no hard links."""
    try:
        path.hardlink_to(blob)
    except OSError:
        shutil.copyfile(blob, path)
