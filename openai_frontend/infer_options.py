"""Options of one request for tensors: its scheduling in Triton's core, and its outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Parameter = str | int | bool | float


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """The place of a request in a sequence of requests to one model (Triton's correlation id)."""

    id: int | str  # of 64 bits without a sign
    start: bool = False
    end: bool = False


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """An output that the model shall return."""

    name: str
    # Also collect the labels of its classes, whose dimensions begin with this one
    labels_from: int | None = None
    # The core writes its bytes here, and the response lacks them. None: memory of the core
    memory: memoryview | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InferOptions:
    """Everything that a request may omit."""

    priority: int = 0  # 1 is the highest; 0: the model's default
    timeout_us: int = 0  # 0: the model's default
    parameters: Mapping[str, Parameter] | None = None
    sequence: SequenceStep | None = None
    outputs: Sequence[OutputRequest] = ()  # empty: all of the model's outputs


DEFAULT_OPTIONS = InferOptions()
