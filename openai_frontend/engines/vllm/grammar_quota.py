"""Limits constrained requests to half of the engine's slots while other requests run or wait. Runs
in the EngineCore process.

Each constrained request adds about 35 us to every step, for its bitmask and its token, which delays
all tokens: 200 of them take a third of a step on a CPU. So the others wait for a slot.
"""

from typing import Any

from vllm.v1.request import RequestStatus


class GrammarQuotaMixin:
    """The part of a vLLM scheduler that admits waiting requests."""

    running: list[Any]
    waiting: Any  # a queue of requests
    max_num_running_reqs: int
    _room: int = 0  # for constrained requests, in this step

    def schedule(self, *given: Any, **named: Any) -> Any:
        slots = self.max_num_running_reqs
        constrained = sum([request.use_structured_output for request in self.running])
        if constrained < len(self.running) or not all(
            _is_constrained(each) for each in self.waiting
        ):
            slots = max(1, slots // 2)
        self._room = slots - constrained
        return super().schedule(*given, **named)  # type: ignore[misc]

    def _handle_blocked_waiting_request(self, request: Any) -> bool:
        waits_for_grammar = request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        if waits_for_grammar and self._room <= 0 and not _has_failed(request):
            return False
        let_in: bool = super()._handle_blocked_waiting_request(request)  # type: ignore[misc]
        self._room -= waits_for_grammar and let_in
        return let_in


def _is_constrained(request: Any) -> bool:
    return bool(request.use_structured_output)


def _has_failed(request: Any) -> bool:
    return isinstance(request.structured_output_request.grammar, Exception)
