"""The engine limits concurrent requests with grammars, so that others find room; no engine runs."""

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.engine


def scheduler(running: list[Any], waiting: list[Any]) -> Any:
    """Return a scheduler like vLLM's, which asks for each waiting request whether it may run."""
    from openai_frontend.engines.vllm.processes.scheduler import GrammarQuotaMixin

    class Theirs:
        def __init__(self) -> None:
            self.asked: list[str] = []
            self.waiting: Any = waiting

        def schedule(self) -> list[Any]:
            return [each for each in self.waiting if self._handle_blocked_waiting_request(each)]

        def _handle_blocked_waiting_request(self, request: Any) -> bool:
            self.asked.append(request.name)
            return not isinstance(request.structured_output_request.grammar, Exception)

    class Ours(GrammarQuotaMixin, Theirs):
        pass

    made = Ours()
    made.running, made.max_num_running_reqs = running, 8
    return made


def request(name: str, *, grammar: Any = None) -> Any:
    from vllm.v1.request import RequestStatus

    waits = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    return SimpleNamespace(
        name=name,
        use_structured_output=grammar is not None,
        structured_output_request=SimpleNamespace(grammar=grammar),
        status=waits if grammar is not None else RequestStatus.WAITING_FOR_STREAMING_REQ,
    )


@pytest.mark.parametrize(("held", "let_in"), [(0, "0123"), (3, "0"), (4, ""), (6, "")])
def test_constrained_requests_get_half_of_the_slots(held: int, let_in: str):
    """Running requests with a grammar count, and so do those that the same step admits."""
    running = [request("r", grammar="g") for _ in range(held)] + [request("free")]
    waiting = [request(str(i), grammar="g") for i in range(9)]

    assert [each.name for each in scheduler(running, waiting).schedule()] == list(let_in)


@pytest.mark.parametrize("held", [0, 3])
def test_constrained_requests_alone_get_all_slots(held: int):
    """If no other requests run or wait, the quota does not apply."""
    running = [request("r", grammar="g") for _ in range(held)]
    waiting = [request(str(i), grammar="g") for i in range(9)]

    assert len(scheduler(running, waiting).schedule()) == 8 - held


def test_waiting_unconstrained_requests_enforce_the_quota():
    """Half of the slots are reserved even before the first of them runs."""
    waiting = [*(request(str(i), grammar="g") for i in range(9)), request("free")]

    assert [each.name for each in scheduler([], waiting).schedule()] == [*"0123", "free"]


def test_quota_ignores_requests_that_will_not_run():
    """One waits for something else; another has a failed grammar, which must be reported."""
    running = [request("r", grammar="g") for _ in range(8)]
    failed = request("failed", grammar=ValueError("no"))

    theirs = scheduler(running, [request("other"), failed, request("more", grammar="g")])

    told = theirs.schedule()

    assert [each.name for each in told] == ["other"]
    assert theirs.asked == ["other", "failed"]  # vLLM ends the failed request there
