"""Sequences of requests: whether an id fits the model, and which caller a sequence belongs to.

The core keeps the state of a sequence under the id that a client has chosen.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from openai_frontend.errors import InvalidRequest
from openai_frontend.infer_options import SequenceStep
from openai_frontend.kserve.models import Core, ModelAddress

MAX_SEQUENCES = 65_536  # a running sequence beyond them, unused for longest, must start again

_PARAMETER = "sequence_id"
# The largest number of each datatype that a model may declare for ids
_LARGEST = {
    "TYPE_UINT64": 2**64 - 1,
    "TYPE_INT64": 2**63 - 1,
    "TYPE_UINT32": 2**32 - 1,
    "TYPE_INT32": 2**31 - 1,
}


class Sequences:
    """Remembers which caller has started a sequence, so that no other one continues it."""

    def __init__(self, core: Core, max_sequences: int = MAX_SEQUENCES) -> None:
        self._core = core
        self._max_sequences = max_sequences
        self._owners: OrderedDict[tuple[str, int | str], str] = OrderedDict()

    def check(self, model: ModelAddress, step: SequenceStep | None, caller: str) -> None:
        """Call it when the request goes to the core. Raises InvalidRequest.

        Cores before 25.01 do not compare the type of an id with the model's: they write a string
        over the end of their tensor for a number.
        """
        if step is None or not step.id:  # the core refuses it if the model needs one
            return
        configs = dict(self._configs(model))
        stateful = [name for name, config in configs.items() if "sequence_batching" in config]
        for name in stateful:
            _check_type(name, configs[name], step.id)
        for name in stateful:
            self._check_owner(name, step, caller)

    def _configs(self, model: ModelAddress) -> Iterator[tuple[str, dict[str, Any]]]:
        """The model's config, and those of the steps of an ensemble."""
        waiting, found = [model], {model.name}
        while waiting:
            each = waiting.pop()
            config = self._core.model_config(each.name, each.version)
            yield each.name, config
            for step in config.get("ensemble_scheduling", {}).get("step", ()):
                if step["model_name"] not in found:
                    found.add(step["model_name"])
                    version = int(step.get("model_version", -1))
                    waiting.append(ModelAddress(step["model_name"], version))

    def _check_owner(self, name: str, step: SequenceStep, caller: str) -> None:
        key = (name, step.id)
        if step.start:
            self._owners[key] = caller
            if len(self._owners) > self._max_sequences:
                self._owners.popitem(last=False)
        elif self._owners.get(key) != caller:
            raise _refusal(f"the first request of a sequence to '{name}' needs `sequence_start`")
        self._owners.move_to_end(key)
        if step.end:
            del self._owners[key]


def _check_type(name: str, config: dict[str, Any], id: int | str) -> None:
    datatype = _id_datatype(config)
    if datatype is None:
        return
    if isinstance(id, str) != (datatype == "TYPE_STRING"):
        expected = "a string" if datatype == "TYPE_STRING" else "an integer"
        raise _refusal(f"model '{name}' needs {expected}")
    if isinstance(id, int) and id > (largest := _LARGEST[datatype]):
        raise _refusal(f"must be at most {largest} for model '{name}'")


def _id_datatype(config: dict[str, Any]) -> str | None:
    """The datatype of the tensor in which the model gets the id; None if it gets none."""
    for tensor in config["sequence_batching"].get("control_input", ()):
        for control in tensor.get("control", ()):
            if control.get("kind") == "CONTROL_SEQUENCE_CORRID":
                return str(control["data_type"])
    return None


def _refusal(reason: str) -> InvalidRequest:
    return InvalidRequest(f"parameter '{_PARAMETER}': {reason}", param=_PARAMETER)
