"""Silence, by counters and a clock that the test moves."""

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
    """One detector, and requests that the test answers."""

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
        """What fires meanwhile, as phase and whether the engine is taken to hang."""
        fired: list[tuple[str, bool]] = []
        for _ in range(round(seconds / step_s)):
            self.now_s += step_s
            for stall in self.detector.check(self.requests, self.now_s):
                stall.stream.done = True  # type: ignore[misc]
                fired.append((stall.phase, stall.hung))
        return fired


def test_no_first_response():
    """A request without a response fires once its time for the first one is over, and once."""
    world = World()
    world.begin()

    assert world.pass_time(4.75) == []
    assert world.pass_time(10) == [("first_token", True)]


def test_silence_after_a_response():
    """Each response begins the time between two anew."""
    world = World()
    request = world.begin()
    for _ in range(10):
        request.received += 1
        assert world.pass_time(1.75) == []

    assert world.pass_time(1) == [("inter_token", True)]


def test_another_request_that_gets_something():
    """Where the same model answers others its engine does not hang; another model is no proof."""
    for others_model, hung in (("m", False), ("n", True)):
        world = World()
        world.begin().received = 1
        other = world.begin(others_model)
        fired: list[tuple[str, bool]] = []
        for _ in range(12):
            other.received += 1
            fired += world.pass_time(EVERY_S)

        assert fired == [("inter_token", hung)]


def test_work_on_whole_answers_is_a_sign_of_life():
    """A request waits for its first response as long as its engine collects tokens."""
    world = World()
    world.begin()
    for _ in range(80):
        world.pending["whole"] += 1
        assert world.pass_time(EVERY_S) == []

    assert world.pass_time(5.25) == [("first_token", True)]


def test_streamed_tokens_without_response_are_a_sign_of_life():
    """A stream whose tokens make no response waits as long as its engine makes some."""
    world = World()
    world.begin().received = 1
    for _ in range(40):
        world.pending["streamed"] += 1
        assert world.pass_time(EVERY_S) == []

    assert world.pass_time(2.25) == [("inter_token", True)]


def test_whole_answers_do_not_excuse_a_silent_stream():
    """A stream that has begun is not kept waiting by the whole answers of its engine."""
    world = World()
    world.begin().received = 1
    fired: list[tuple[str, bool]] = []
    for _ in range(10):
        world.pending["whole"] += 1
        fired += world.pass_time(EVERY_S)

    assert [phase for phase, _ in fired] == ["inter_token"]


def test_old_work_is_no_sign_of_life():
    """What the engine had collected before the request came does not count."""
    world = World()
    world.pending["whole"] = 1000
    world.begin()

    assert world.pass_time(6) == [("first_token", True)]


def test_zero_is_for_ever():
    world = World(StallTimeouts(first_token_s=0, inter_token_s=0))
    world.begin()
    world.begin().received = 3

    assert world.pass_time(3600) == []


def test_a_loop_that_was_blocked():
    """Time in which the event loop did not run, and served no engine, is nobody's silence."""
    world = World()
    world.begin().received = 1

    assert world.pass_time(1) == []
    assert world.pass_time(60, step_s=60) == []
    assert world.pass_time(0.5) == []
    assert world.pass_time(1) == [("inter_token", True)]


def test_requests_that_are_over():
    """Nobody waits for them."""
    world = World()
    world.begin().done = True

    assert world.pass_time(60) == []
