"""What engines tell of a request's media is bounded."""

import pytest

from openai_frontend.media.stages import Stage, StageLog

STAGE = Stage("image decode", 1, 2)


@pytest.fixture
def log() -> StageLog:
    made = StageLog()
    made.enabled = True
    return made


def test_stages_of_an_id_are_bounded(log: StageLog) -> None:
    """A client of another protocol may send the same id with each request."""
    for _ in range(2000):
        log.add("1", [STAGE] * 3)

    assert log.take("1") == [STAGE] * 256
    assert log.take("1") == ()


def test_request_without_an_id_has_no_stages(log: StageLog) -> None:
    log.add("", [STAGE])

    assert log.take("") == ()
