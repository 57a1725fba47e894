"""Model repositories in object storage, before the server starts: checks them, and copies them."""

import asyncio
import importlib.util
import logging
from collections.abc import Sequence

from openai_frontend.config.bucket_repositories import BucketRepository
from openai_frontend.config.loader import InvalidSettings

logger = logging.getLogger(__name__)


class CopyFailed(Exception):
    """A bucket that cannot be copied. The message is one line that names it and the cause."""


def check(buckets: Sequence[BucketRepository]) -> None:
    """Raises InvalidSettings if they could not be copied on this machine."""
    for bucket in buckets:
        try:
            bucket.folder()
        except ValueError as error:
            raise InvalidSettings(f"model_repository: {error}") from None
    if buckets and importlib.util.find_spec("obstore") is None:
        raise InvalidSettings(
            f"model_repository: {buckets[0]}: obstore is not installed; "
            "install openai-frontend[object-storage]"
        )


def copy(buckets: Sequence[BucketRepository]) -> None:
    """Copy what changed since the last start. Raises CopyFailed."""
    for bucket in buckets:
        try:
            asyncio.run(_copy(bucket))
        except KeyboardInterrupt:
            raise CopyFailed(f"{bucket}: interrupted; the next start resumes the copy") from None


async def _copy(bucket: BucketRepository) -> None:
    from openai_frontend.object_storage.copying import copy_repository  # needs the extra
    from openai_frontend.object_storage.errors import StorageError

    logger.info("copying %s to %s", bucket, bucket.models())
    try:
        report = await copy_repository(bucket)
    except StorageError as error:
        raise CopyFailed(f"{bucket}: {error}") from None
    for model, reason in report.failed.items():
        raise CopyFailed(f"{bucket}: model {model}: {reason}")
    if report.ignored:
        logger.warning("%s: %s", bucket, report.ignored)
    for model, reason in report.refused.items():
        logger.error("%s: model %s is not copied: %s", bucket, model, reason)
