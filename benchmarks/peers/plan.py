"""What a run measures, how often, how long."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.metric import Metric
from benchmarks.peers import metrics
from benchmarks.peers.servers import MODEL
from benchmarks.scenario import Scenario

_OPEN_SHARE = 0.5  # of the slowest server's requests per second at the most streams
_TEXT_BYTES = 100  # of each text that is embedded
_CONNECTIONS, _FEW = 32, 8
_PROBES_PER_S = 200.0
_LONGER_S = 1.0  # than the load beside which it runs
_STREAMS = {
    "question_tools": "with tools offered",
    "question_schema": "with a JSON schema",
    "question_logprobs": "with log probabilities",
}
_APIS = {"question": "chat", "question_responses": "Responses", "question_messages": "Messages"}
_IMAGES = {
    "image_512": "new image of 512 px",
    "image_1024": "new image of 1,024 px",
    "image_known": "known image of 1,024 px",
}
# With the last brace, or at the end that the other APIs cannot have the model ignore
_END_EARLY = {"question_schema", "question_responses", "question_messages"}
# 60 KB are 25,000 tokens of the demo model's tokenizer
_PROMPTS = (
    ("question_long", "prompt of 3 KB, 1 token", 3_000),
    ("question_long", "prompt of 30 KB, 1 token", 30_000),
    ("question_turn", "next turn after 60 KB, 1 token", 60_000),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Numbers only."""

    rounds: int = 3
    streams: tuple[int, ...] = (1, 8, 32, 64)
    tokens: int = 200
    warm_up_s: float = 2.0
    measured_s: float = 6.0
    open_loop: bool = True
    rate_per_s: float | None = None  # of the open loop; None: from the first round

    def closed(self, streams: int) -> Scenario:
        """A closed loop."""
        title = f"{streams} stream{'s' if streams > 1 else ''}"
        return self._chat(title, connections=streams, spread_s=self.warm_up_s / 2)

    def opened(self, rate_per_s: float) -> Scenario:
        """The open loop."""
        title = f"open loop, {rate_per_s:.1f} requests/s"
        return self._chat(title, connections=1, rate_per_s=rate_per_s)

    def _chat(self, title: str, **options: Any) -> Scenario:
        tokens = (self.tokens, self.tokens)
        return self._scenario(
            title, metrics.CHAT, kind="question", tokens=tokens, gaps=True, **options
        )

    def embeddings(self, batch: int, encoding: str) -> Scenario:
        """A closed loop of eight connections, or of two where a request holds many texts."""
        connections = 8 if batch == 1 else 2
        return self._scenario(
            f"{batch} text{'s' if batch > 1 else ''} a request, {encoding}",
            metrics.EMBEDDINGS,
            kind=f"embeddings_{encoding}",
            connections=connections,
            spread_s=self.warm_up_s / 2,
            inputs=batch,
            prompt_bytes=_TEXT_BYTES,
        )

    def kinds(self) -> Iterator[Scenario]:
        """Closed loops of other requests than plain streams, each with its connections kept alive
        and with a new connection for each request.
        """
        for reconnect, suffix in ((False, ""), (True, ", new connections")):
            for kind, title in _STREAMS.items():
                yield self._kind(kind, f"{_CONNECTIONS} streams {title}{suffix}", reconnect)
            yield self._whole(
                "question", f"{_CONNECTIONS} whole answers{suffix}", reconnect, tokens=self.tokens
            )
            yield self._whole("question", f"1 token{suffix}", reconnect)
            for kind, title, size in _PROMPTS:
                # Aligned: the conversation is known, and no load ends before its first answer
                options = {"prompt_bytes": size, "connections": 2, "aligned": True}
                yield self._whole(kind, f"{title}{suffix}", reconnect, **options)

    def apis(self) -> Iterator[Scenario]:
        """The same streams, and answers of one token, by each API for text."""
        for kind, api in _APIS.items():
            yield self._kind(kind, f"{_CONNECTIONS} streams by {api}", reconnect=False)
        for kind, api in _APIS.items():
            yield self._whole(kind, f"1 token by {api}", reconnect=False)

    def images(self) -> Iterator[Scenario]:
        """Closed loops of questions about images, with answers of one token."""
        for kind, title in _IMAGES.items():
            yield self._whole(kind, f"{title}, 1 token", reconnect=False)
        yield self._whole(
            "image_turn",
            "conversation with 30 known images of 1,024 px, 1 token",
            reconnect=False,
            connections=2,
            distinct=False,  # a request has megabytes, and the client keeps each
        )

    def beside_images(self, chats: int) -> Scenario:
        """Text streams and probes, beside as many chats with new images."""
        times = {"warm_up_s": self.warm_up_s, "measured_s": self.measured_s + _LONGER_S}
        other = self._whole("image_512", "", reconnect=False, connections=chats).options
        return replace(
            self._scenario(
                f"{_FEW} streams" + (f" beside {chats} new images of 512 px" if chats else ""),
                metrics.STREAMS_AND_PROBES,
                kind="question",
                tokens=(self.tokens, self.tokens),
                gaps=True,
                connections=_FEW,
                spread_s=self.warm_up_s / 2,
                probes_per_s=_PROBES_PER_S,
            ),
            beside={**other, **times} if chats else None,
        )

    def _kind(self, kind: str, title: str, reconnect: bool) -> Scenario:
        return self._scenario(
            title,
            metrics.CHAT,
            kind=kind,
            tokens=(self.tokens, self.tokens),
            gaps=True,
            exact=kind not in _END_EARLY,
            connections=_CONNECTIONS,
            spread_s=self.warm_up_s / 2,
            reconnect=reconnect,
        )

    def _whole(
        self, kind: str, title: str, reconnect: bool, *, tokens: int = 1, **options: Any
    ) -> Scenario:
        """Answers that are not streamed. Few at a time where each has one token, or the engine
        would make all wait; the longer the prompts, the fewer.
        """
        return self._scenario(
            title,
            metrics.ANSWERS,
            kind=kind,
            stream=False,
            tokens=(tokens, tokens),
            **{"connections": _CONNECTIONS if tokens > 1 else _FEW, **options},
            reconnect=reconnect,
        )

    def _scenario(self, title: str, of: tuple[Metric, ...], **options: Any) -> Scenario:
        times = {"warm_up_s": self.warm_up_s, "measured_s": self.measured_s}
        every = {"model": MODEL, "distinct": True, **times, **options}
        return Scenario(name=title, title=title, metrics=of, options=every)

    def rate(self, tokens_per_s: float) -> float:
        """The open loop's rate where the slowest server makes this many tokens a second."""
        return self.rate_per_s or round(_OPEN_SHARE * tokens_per_s / self.tokens, 1)
