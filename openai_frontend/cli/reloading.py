"""Settings read again while the server runs. Takes up what may change, and names what may not."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from openai_frontend.metrics.catalog import ReloadOutcome
from openai_frontend.setting_sources import InvalidSettings
from openai_frontend.setting_table import options
from openai_frontend.settings import Settings

logger = logging.getLogger(__name__)


class Reloading:
    """One reload after the other; those that are asked for during one are one more."""

    def __init__(
        self,
        settings: Settings,
        read: Callable[[], Settings],
        take_up: Callable[[Settings], Awaitable[None]],
        *,
        count: Callable[[ReloadOutcome], None],
    ) -> None:
        """`read` may take its time, in a thread; it raises InvalidSettings."""
        self.settings = settings  # as the server has them
        self._read = read
        self._take_up = take_up
        self._count = count
        self._lock = asyncio.Lock()
        self._waiting = False

    async def reload(self) -> str | None:
        """What became of it, in a line; None where a reload to come will see to it."""
        if self._waiting:
            return None
        self._waiting = True
        async with self._lock:
            self._waiting = False
            return await self._reload()

    async def _reload(self) -> str:
        try:
            wanted = await asyncio.to_thread(self._read)
        except InvalidSettings as error:
            logger.error("the settings stay as they were: %s", error)
            self._count("refused")
            return f"settings stay as they were: {error}"
        now = taken_up(self.settings, wanted)
        await self._take_up(now)
        changed, later = _differing(self.settings, now), _differing(now, wanted)
        self.settings = now
        self._count("taken_up")
        for name in later:
            logger.warning("%s was changed: that takes effect at the next start", name)
        logger.info("the settings were read again; changed: %s", ", ".join(changed) or "none")
        return f"settings read again; changed: {', '.join(changed) or 'none'}"


def taken_up(now: Settings, wanted: Settings) -> Settings:
    """The settings of now, but for those that a running server takes up."""
    news = {each.name: getattr(wanted, each.name) for each in options() if each.reloads}
    return now.model_copy(update=news)


def _differing(one: Settings, other: Settings) -> list[str]:
    names = (option.name for option in options())
    return [name for name in names if getattr(one, name) != getattr(other, name)]
