"""Requests that are held to grammars take no more than half of the engine's places while there are
others. Runs in the EngineCore process.

Each adds some 35 us to every step, for its mask and its token, which everybody's tokens wait for:
200 of them a third of a step on a CPU. So the rest of them waits, as for a place.
"""

from typing import Any

from vllm.v1.request import RequestStatus


class GrammarQuotaMixin:
    """Of a scheduler of vLLM's: the part that lets waiting requests in."""

    running: list[Any]
    waiting: Any  # a queue of requests
    max_num_running_reqs: int
    _room: int = 0  # for requests with a grammar, in this step

    def schedule(self, *given: Any, **named: Any) -> Any:
        """See vLLM's."""
        places = self.max_num_running_reqs
        held = sum([request.use_structured_output for request in self.running])
        if held < len(self.running) or not all(_is_held(each) for each in self.waiting):
            places = max(1, places // 2)
        self._room = places - held
        return super().schedule(*given, **named)  # type: ignore[misc]

    def _handle_blocked_waiting_request(self, request: Any) -> bool:
        waits_for_grammar = request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        if waits_for_grammar and self._room <= 0 and not _has_failed(request):
            return False
        let_in: bool = super()._handle_blocked_waiting_request(request)  # type: ignore[misc]
        self._room -= waits_for_grammar and let_in
        return let_in


def _is_held(request: Any) -> bool:
    return bool(request.use_structured_output)


def _has_failed(request: Any) -> bool:
    return isinstance(request.structured_output_request.grammar, Exception)
