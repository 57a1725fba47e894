"""Finds engines that hang: compares what each request has got with what it had at the last look.

Nothing is done for a token but the counting, which is native; a look costs 1.5 us for each request.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

Kind = Literal["first_token", "between_tokens"]

# A loop that comes later than this has served no engine meanwhile: that time is nobody's silence.
LATE_S = 0.5


class Watched(Protocol):
    """A request in flight. The last two are the watchdog's own."""

    model_name: str
    seen: tuple[int, int] | None
    since_s: float

    @property
    def received(self) -> int:
        """Responses that have come."""

    @property
    def over(self) -> bool:
        """Nothing more is expected."""


class Patience(Protocol):
    """Seconds that a model may be silent; 0: for ever."""

    @property
    def first_token_s(self) -> float:
        """Before its first response to a request."""

    @property
    def between_tokens_s(self) -> float:
        """After one."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A request that has waited for too long."""

    stream: Watched
    kind: Kind
    waited_s: float
    hung: bool  # no other request to the model got anything meanwhile either


class Watchdog:
    """One for the process; `look` is called in even steps."""

    def __init__(
        self,
        patience: Callable[[str], Patience],
        unseen: Callable[[str, bool], int],
        *,
        every_s: float,
    ) -> None:
        """`unseen(model, begun)` counts the tokens of its engine that made no response: those of
        whole answers only for a request that has not begun to answer.
        """
        self._patience = patience
        self._unseen = unseen
        self._every_s = every_s
        self._looked_s: float | None = None
        self._moved_s: dict[str, float] = {}  # model -> when one of its requests got something

    def look(self, streams: Iterable[Watched], now_s: float) -> list[Stall]:
        """The requests that have now waited for too long."""
        late_s = self._late_s(now_s)
        waiting = [stream for stream in streams if not stream.over]
        for stream in waiting:
            self._note(stream, now_s, late_s)
        stalls = (self._stall(stream, now_s) for stream in waiting)
        return [stall for stall in stalls if stall is not None]

    def _late_s(self, now_s: float) -> float:
        before_s, self._looked_s = self._looked_s, now_s
        late_s = 0.0 if before_s is None else now_s - before_s - self._every_s
        return late_s if late_s > LATE_S else 0.0

    def _note(self, stream: Watched, now_s: float, late_s: float) -> None:
        received = stream.received
        count = (received, self._unseen(stream.model_name, received > 0))
        if stream.seen == count:
            stream.since_s += late_s
            return
        if stream.seen is not None or received:
            self._moved_s[stream.model_name] = now_s
        stream.seen, stream.since_s = count, now_s

    def _stall(self, stream: Watched, now_s: float) -> Stall | None:
        patience = self._patience(stream.model_name)
        begun = stream.received > 0
        limit_s = patience.between_tokens_s if begun else patience.first_token_s
        waited_s = now_s - stream.since_s
        if not limit_s or waited_s < limit_s:
            return None
        moved_s = self._moved_s.get(stream.model_name, stream.since_s)
        kind: Kind = "between_tokens" if begun else "first_token"
        return Stall(stream, kind, waited_s, hung=moved_s <= stream.since_s)
