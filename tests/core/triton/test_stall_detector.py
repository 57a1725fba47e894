"""Stalls, with counters and a clock that the test controls."""

from dataclasses import dataclass

from openai_frontend.triton.stall_detector import StallDetector

EVERY_S = 0.25


@dataclass(frozen=True)
class StallTimeouts:
    first_token_s: float = 5.0
    inter_token_s: float = 2.0


@dataclass(eq=False)
class Request:
    model_name: str = "m"
    received: int = 0
    done: bool = False
    seen: tuple[int, int] | None = None
    since_s: float = 0.0


class World:
    """A detector, and requests with responses from the test."""

    def __init__(self, timeouts: StallTimeouts | None = None) -> None:
        self.now_s = 0.0
        self.pending = {"whole": 0, "streamed": 0}
        self.requests: list[Request] = []
        timeouts = timeouts or StallTimeouts()
        self.detector = StallDetector(lambda _: timeouts, self.pending_tokens, every_s=EVERY_S)

    def pending_tokens(self, model_name: str, begun: bool) -> int:
        return self.pending["streamed"] + (0 if begun else self.pending["whole"])

    def begin(self, model_name: str = "m") -> Request:
        self.requests.append(Request(model_name))
        return self.requests[-1]

    def pass_time(self, seconds: float, *, step_s: float = EVERY_S) -> list[tuple[str, bool]]:
        """The stalls meanwhile, as phase and whether the engine hangs."""
        fired: list[tuple[str, bool]] = []
        for _ in range(round(seconds / step_s)):
            self.now_s += step_s
            for stall in self.detector.check(self.requests, self.now_s):
                stall.stream.done = True  # type: ignore[misc]
                fired.append((stall.phase, stall.hung))
        return fired


def test_no_first_response():
    """A request without a response stalls once after the first-token timeout."""
    world = World()
    world.begin()

    assert world.pass_time(4.75) == []
    assert world.pass_time(10) == [("first_token", True)]


def test_silence_after_a_response():
    """Each response restarts the timeout."""
    world = World()
    request = world.begin()
    for _ in range(10):
        request.received += 1
        assert world.pass_time(1.75) == []

    assert world.pass_time(1) == [("inter_token", True)]


def test_responses_to_other_requests():
    """If the same model responds to others, its engine does not hang; another model is no
    evidence.
    """
    for others_model, hung in (("m", False), ("n", True)):
        world = World()
        world.begin().received = 1
        other = world.begin(others_model)
        fired: list[tuple[str, bool]] = []
        for _ in range(12):
            other.received += 1
            fired += world.pass_time(EVERY_S)

        assert fired == [("inter_token", hung)]


def test_pending_tokens_count_as_progress():
    """A request waits for its first response as long as its engine collects tokens."""
    world = World()
    world.begin()
    for _ in range(80):
        world.pending["whole"] += 1
        assert world.pass_time(EVERY_S) == []

    assert world.pass_time(5.25) == [("first_token", True)]


def test_streamed_tokens_without_response_count_as_progress():
    """A stream whose tokens create no response waits as long as its engine produces some."""
    world = World()
    world.begin().received = 1
    for _ in range(40):
        world.pending["streamed"] += 1
        assert world.pass_time(EVERY_S) == []

    assert world.pass_time(2.25) == [("inter_token", True)]


def test_complete_responses_do_not_excuse_a_silent_stream():
    """Tokens of complete responses do not extend the wait of a stream that has begun."""
    world = World()
    world.begin().received = 1
    fired: list[tuple[str, bool]] = []
    for _ in range(10):
        world.pending["whole"] += 1
        fired += world.pass_time(EVERY_S)

    assert [phase for phase, _ in fired] == ["inter_token"]


def test_earlier_tokens_are_not_progress():
    """Tokens collected before the request do not count."""
    world = World()
    world.pending["whole"] = 1000
    world.begin()

    assert world.pass_time(6) == [("first_token", True)]


def test_zero_disables():
    world = World(StallTimeouts(first_token_s=0, inter_token_s=0))
    world.begin()
    world.begin().received = 3

    assert world.pass_time(3600) == []


def test_blocked_event_loop():
    """Time in which the event loop was blocked does not count."""
    world = World()
    world.begin().received = 1

    assert world.pass_time(1) == []
    assert world.pass_time(60, step_s=60) == []
    assert world.pass_time(0.5) == []
    assert world.pass_time(1) == [("inter_token", True)]


def test_finished_requests():
    """They do not stall."""
    world = World()
    world.begin().done = True

    assert world.pass_time(60) == []
