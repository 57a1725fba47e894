"""The activities that Triton reports, grouped by its traces."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from openai_frontend.request_context.record import CoreActivity, CoreTrace

# Names of Triton's trace activities, by number
_ACTIVITIES = (
    "REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START",
    "COMPUTE_END", "REQUEST_END", "TENSOR_QUEUE_INPUT", "TENSOR_BACKEND_INPUT",
    "TENSOR_BACKEND_OUTPUT",
)  # fmt: skip
QUEUE_START, COMPUTE_START, COMPUTE_END = 1, 2, 5


def activity_name(number: int) -> str:
    return _ACTIVITIES[number] if number < len(_ACTIVITIES) else f"ACTIVITY_{number}"


def by_trace(trace: CoreTrace) -> Mapping[int, Sequence[CoreActivity]]:
    """The request's own trace, and those of the steps of an ensemble and of nested requests."""
    found: dict[int, list[CoreActivity]] = defaultdict(list)
    for activity in trace.activities():
        found[activity[0]].append(activity)
    return found
