"""Keeps the local copies of buckets current while the gateway runs, off its event loop."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from openai_frontend.config.bucket_repositories import BucketRepository
from openai_frontend.errors import ModelUnavailable
from openai_frontend.object_storage import ensemble_steps
from openai_frontend.object_storage.copying import OTHERS, CopyReport, copy_repository
from openai_frontend.object_storage.errors import StorageError
from openai_frontend.runtime.background_tasks import in_daemon_thread

logger = logging.getLogger(__name__)

_STOPPING = "the gateway is stopping"


class BucketCopies:
    """Used on one event loop, and closed there."""

    def __init__(self, buckets: Sequence[BucketRepository], folders: Sequence[Path]) -> None:
        """`folders` are all model repositories, with the copies of the buckets."""
        self._buckets = buckets
        self._folders = folders
        self.failures = 0  # copies that are not as their bucket
        self._logged: dict[tuple[BucketRepository, str], str] = {}  # problem of a model
        self._running: dict[asyncio.Future[CopyReport], _CopyInThread] = {}
        self._closed = False

    async def update(self) -> None:
        """Copy what changed. A failure keeps what is here; the log has it once."""
        for bucket in self._buckets:
            await self._update(bucket, None)

    async def update_model(self, name: str) -> None:
        """Copy a model that is about to be loaded, and the steps of an ensemble, which the core
        loads with it. Raises ModelUnavailable if one of them is nowhere.
        """
        copied: set[str] = set()
        left = [name]
        while left:
            model = left.pop()
            copied.add(model)
            await self._update_one(model)
            found = await asyncio.to_thread(ensemble_steps.steps, model, self._folders)
            left += found.difference(copied, left)

    async def _update_one(self, name: str) -> None:
        for bucket in self._buckets:
            problems = await self._update(bucket, name)
            if problems and not any((folder / name).exists() for folder in self._folders):
                reason = next(iter(problems.values()))
                raise ModelUnavailable(f"model '{name}' cannot be copied from {bucket}: {reason}")

    async def close(self) -> None:
        """End the copies that run: they resume at the next start."""
        self._closed = True
        for copy in self._running.values():
            copy.cancel()
        if self._running:
            await asyncio.wait(list(self._running))

    async def _update(self, bucket: BucketRepository, model: str | None) -> Mapping[str, str]:
        """The problems by model."""
        try:
            report = await self._copied(bucket, model)
            problems = report.problems()
        except StorageError as error:
            problems = {OTHERS if model is None else model: str(error)}
        if not self._closed:
            self._log(bucket, problems, model)
        return problems

    async def _copied(self, bucket: BucketRepository, model: str | None) -> CopyReport:
        if self._closed:
            raise StorageError(_STOPPING)
        copy = _CopyInThread(bucket, model)
        running = asyncio.ensure_future(in_daemon_thread("bucket-copy", copy.run))
        self._running[running] = copy
        running.add_done_callback(self._ended)
        return await asyncio.shield(running)

    def _ended(self, running: asyncio.Future[CopyReport]) -> None:
        """Mark the exception as retrieved: the caller may have been cancelled."""
        del self._running[running]
        if not running.cancelled():
            running.exception()

    def _log(
        self, bucket: BucketRepository, problems: Mapping[str, str], model: str | None
    ) -> None:
        """Log what is new, and what is over."""
        for name, reason in problems.items():
            if self._logged.get((bucket, name)) != reason:
                logger.warning("%s: %s: not updated: %s", bucket, _subject(name), reason)
            self._logged[bucket, name] = reason
        self.failures += bool(problems)
        for key in [each for each in self._logged if each[0] == bucket]:
            if key[1] not in problems and model in (None, key[1]):
                del self._logged[key]
                logger.info("%s: %s: updated again", bucket, _subject(key[1]))


def _subject(name: str) -> str:
    return "all models" if name == OTHERS else f"model {name}"


class _CopyInThread:
    """Has an event loop of its own: writing files would block the gateway's."""

    def __init__(self, bucket: BucketRepository, model: str | None) -> None:
        self._bucket = bucket
        self._model = model
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[CopyReport] | None = None
        self._is_cancelled = False

    def run(self) -> CopyReport:
        """Raises StorageError."""
        try:
            with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
                return runner.run(self._copy())
        except asyncio.CancelledError:
            raise StorageError(_STOPPING) from None

    async def _copy(self) -> CopyReport:
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        if self._is_cancelled:
            raise asyncio.CancelledError
        return await copy_repository(self._bucket, self._model)

    def cancel(self) -> None:
        """From another thread."""
        self._is_cancelled = True
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(self._task.cancel)
