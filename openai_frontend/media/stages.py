"""When the stages of a request's media began and ended: engines tell it, traces show it."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_MAX_REQUESTS = 1024  # with stages that were not yet taken
_MAX_STAGES = 256  # of an id, which clients of other protocols may repeat


class Stage(NamedTuple):
    """A piece of work on one image or one piece of audio. Nanoseconds of the monotonic clock."""

    name: str  # such as "image decode"
    begin_ns: int
    end_ns: int


class StageLog:
    """The stages of requests by their id in Triton. Keeps nothing unless enabled. Not thread-safe:
    use it on the event loop.
    """

    def __init__(self) -> None:
        self.enabled = False
        self._stages: OrderedDict[str, list[Stage]] = OrderedDict()

    def add(self, request_id: str, stages: Iterable[Stage]) -> None:
        """Drops the oldest request beyond the limit: those of other protocols are never taken."""
        if not (self.enabled and request_id):
            return
        known = self._stages.setdefault(request_id, [])
        known += [*stages][: _MAX_STAGES - len(known)]
        while len(self._stages) > _MAX_REQUESTS:
            self._stages.popitem(last=False)

    def take(self, request_id: str) -> Sequence[Stage]:
        """Return a request's stages and forget them."""
        return self._stages.pop(request_id, ())


LOG = StageLog()
"""That of the process, shared by the application and the engines in it."""
