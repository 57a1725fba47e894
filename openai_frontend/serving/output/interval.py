"""Several tokens as one event, where a client asked for fewer events. Never waits for a clock."""

from collections.abc import Callable, Sequence

from openai_frontend.generation import CompletionDelta, merge_deltas

Join = Callable[[Sequence[CompletionDelta]], CompletionDelta]


class DeltaCoalescer:
    """Gathers one choice's deltas until `tokens` tokens have come.

    The first one goes on at once, for it is what a client waits for, and so does the last.
    """

    def __init__(self, tokens: int, join: Join = merge_deltas) -> None:
        self._tokens = tokens
        self._join = join
        self._held: list[CompletionDelta] = []
        self._count = tokens - 1  # so that the first delta is due

    def feed(self, delta: CompletionDelta) -> CompletionDelta | None:
        """All that was held, with this delta; None where more tokens are to come first."""
        self._held.append(delta)
        # a model that does not tell its token ids sends one token at a time
        self._count += len(delta.token_ids) or 1
        if self._count < self._tokens and delta.finish_reason is None:
            return None
        held, self._held, self._count = self._held, [], 0
        return held[0] if len(held) == 1 else self._join(held)
