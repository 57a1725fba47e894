import pytest

from openai_frontend.admission.queue import NO_QUEUE, TritonQueue, triton_queue

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
def test_queue_of_a_config(config, expected):
    """Only the dynamic batcher has levels; any of its policies may allow timeouts."""
    assert triton_queue(config) == expected


@pytest.mark.parametrize(("priority", "level"), [(0, 2), (-1, 1), (-9, 1), (1, 3), (9, 3)])
def test_priority_to_level(priority, level):
    """A priority is relative to the default level, and clamped to the last one."""
    assert TritonQueue(3, 2).level(priority) == level
    assert NO_QUEUE.level(priority) == 0


@pytest.mark.parametrize(("level", "priority"), [(1, -1), (2, 0), (3, 1), (0, 0), (4, 0)])
def test_level_to_priority(level, priority):
    """A level out of range is the default level, as in Triton."""
    assert TritonQueue(3, 2).priority(level) == priority
    assert NO_QUEUE.priority(level) == 0
