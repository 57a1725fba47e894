"""Bitmasks of the tokens that grammars allow next: filled together, within a limit on their time.

The step of an engine waits for the masks of all its requests. With an ambiguous grammar, such as
`e ::= [a-z ] | e e | e e e`, a token can take seconds: one request would stop all others.
"""

import os
import time
from typing import Any

import torch
from vllm.v1.structured_output.backend_guidance import GuidanceGrammar
from vllm.v1.structured_output.backend_xgrammar import XgrammarGrammar

from openai_frontend.engines.vllm import versions

# CPU time that a grammar may take, apart from its compilation: in one request, and in all. A token
# of usual grammars takes 10 to 30 us. The trial of a grammar (grammars/sandbox_worker.py) allows
# less: 2.5 s for at least 96 tokens.
FREE_S = 1.0
PER_TOKEN_S = 0.02
# A batch that takes longer has a slow grammar, or a busy machine
_SLOW_BATCH_S = 0.02


class TimeSpent:
    """CPU time of a grammar, and the number of tokens that it read."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.tokens = 0

    def add(self, cpu_s: float, tokens: int) -> None:
        self.cpu_s += cpu_s
        self.tokens += tokens

    def is_too_much(self) -> bool:
        return self.cpu_s > FREE_S + PER_TOKEN_S * self.tokens


def timed_class(kind: type) -> type:
    """A class of vLLM's grammars that fail when they have taken too long."""

    class Timed(kind):  # type: ignore[misc]
        is_too_slow = False
        spent: TimeSpent
        together: TimeSpent  # of all requests with the same grammar

        def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
            """Whether the grammar allows the tokens; False ends the request with an error."""
            begun_s = time.thread_time()
            accepted: bool = super().accept_tokens(request_id, tokens)
            self._add(time.thread_time() - begun_s, len(tokens))
            if self.spent.is_too_much() or self.together.is_too_much():
                self.is_too_slow = not self.is_terminated()
            return accepted and not self.is_too_slow

        def fill_bitmask(self, bitmask: torch.Tensor, row: int) -> None:
            """Set the mask of the tokens that may come next."""
            begun_s = time.thread_time()
            super().fill_bitmask(bitmask, row)
            self._add(time.thread_time() - begun_s, 0)

        def _add(self, cpu_s: float, tokens: int) -> None:
            self.spent.add(cpu_s, tokens)
            self.together.add(cpu_s, tokens)

    return Timed


_TIMED = {kind: timed_class(kind) for kind in (XgrammarGrammar, GuidanceGrammar)}


def timed(grammar: Any, together: TimeSpent) -> Any:
    """Limit the time of a grammar, and return it."""
    kind = _TIMED.get(type(grammar))
    if kind is not None:
        grammar.__class__ = kind
        grammar.spent, grammar.together = TimeSpent(), together
    return grammar


class BatchedBitmaskMixin:
    """Fills the grammar bitmasks of a step in one batch; vLLM fills each request's separately.

    For 200 requests, 2,048 tokens and one core: 2.0 ms instead of 3.2.
    """

    requests: Any
    structured_output_manager: Any
    _together: Any = None  # created by the first request that needs it
    _is_slow = False  # the last masks: the next ones are filled and timed one by one

    def get_grammar_bitmask(self, scheduler_output: Any) -> Any:
        """Falls back to vLLM's implementation for several tokens per request."""
        manager = self.structured_output_manager
        if (
            not scheduler_output.has_structured_output_requests
            or scheduler_output.scheduled_spec_decode_tokens
            or manager._grammar_bitmask is None  # vLLM allocates it
            or not manager.enable_in_reasoning
        ):
            return super().get_grammar_bitmask(scheduler_output)  # type: ignore[misc]
        held = {
            request_id: request.structured_output_request.grammar
            for request_id in scheduler_output.num_scheduled_tokens
            if (request := self.requests.get(request_id)) is not None
            and request.use_structured_output
            and not request.is_prefill_chunk
        }
        if not held:
            return None
        bitmask = manager._grammar_bitmask[: len(held)]
        self._fill(list(held.values()), bitmask)
        return versions.grammar_output(list(held), bitmask.numpy())

    def _fill(self, grammars: list[Any], bitmask: torch.Tensor) -> None:
        matchers, rows = [], []
        begun_s = time.monotonic()
        for row, grammar in enumerate(grammars):
            if grammar.is_terminated():
                bitmask[row].fill_(-1)
            elif isinstance(grammar, XgrammarGrammar) and not self._is_slow:
                matchers.append(grammar.matcher)
                rows.append(row)
            else:
                grammar.fill_bitmask(bitmask, row)
        if matchers:
            self._matcher().batch_fill_next_token_bitmask(matchers, bitmask, rows)
        self._is_slow = time.monotonic() - begun_s > _SLOW_BATCH_S

    def _matcher(self) -> Any:
        if self._together is None:
            import xgrammar

            threads = max(1, min(8, len(os.sched_getaffinity(0)) // 2))
            self._together = xgrammar.BatchGrammarMatcher(max_threads=threads)
        return self._together
