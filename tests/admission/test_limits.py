import pytest

from openai_frontend.admission.limits import NO_QUEUE, TritonQueue, triton_queue

LEVELS = {"priority_levels": 3, "default_priority_level": 2}
TAKES = {"allow_timeout_override": True, "default_timeout_microseconds": 1000}

CONFIGS = [
    ({}, NO_QUEUE),
    ({"dynamic_batching": {}}, NO_QUEUE),
    ({"dynamic_batching": LEVELS}, TritonQueue(3, 2)),
    ({"dynamic_batching": {"default_queue_policy": TAKES}}, TritonQueue(takes_timeouts=True)),
    (
        {"dynamic_batching": {**LEVELS, "priority_queue_policy": {"1": TAKES}}},
        TritonQueue(3, 2, takes_timeouts=True),
    ),
    ({"dynamic_batching": {"default_queue_policy": {"allow_timeout_override": True}}}, NO_QUEUE),
    ({"sequence_batching": {}}, NO_QUEUE),
]


@pytest.mark.parametrize(("config", "expected"), CONFIGS)
def test_what_a_config_says(config, expected):
    """Only the batcher has levels, and any of its policies may take a request's time."""
    assert triton_queue(config) == expected


@pytest.mark.parametrize(("priority", "level"), [(0, 2), (-1, 1), (-9, 1), (1, 3), (9, 3)])
def test_levels(priority, level):
    """A priority counts from the model's own level; beyond the last it is the last."""
    assert TritonQueue(3, 2).level(priority) == level
    assert NO_QUEUE.level(priority) == 0


@pytest.mark.parametrize(("level", "priority"), [(1, -1), (2, 0), (3, 1), (0, 0), (4, 0)])
def test_priorities(level, priority):
    """A level that is not there is the model's own, as Triton has it."""
    assert TritonQueue(3, 2).priority(level) == priority
    assert NO_QUEUE.priority(level) == 0
