"""Ids of sequences against the configs of models, and the limit of remembered sequences."""

from typing import Any

import pytest

from openai_frontend.errors import InvalidRequest
from openai_frontend.infer_options import SequenceStep
from openai_frontend.kserve.models import ModelAddress
from openai_frontend.kserve.sequences import Sequences


def stateful(datatype: str) -> dict[str, Any]:
    control = {"kind": "CONTROL_SEQUENCE_CORRID", "data_type": datatype}
    return {"sequence_batching": {"control_input": [{"name": "ID", "control": [control]}]}}


def ensemble(*models: str) -> dict[str, Any]:
    steps = [{"model_name": name, "model_version": "-1"} for name in models]
    return {"ensemble_scheduling": {"step": steps}}


CONFIGS = {
    "small": stateful("TYPE_INT32"),
    "text": stateful("TYPE_STRING"),
    "no_id": {"sequence_batching": {}},
    "plain": {},
    "inner": ensemble("plain", "small", "outer"),  # a loop must not hang
    "outer": ensemble("inner"),
}


class Configs:
    """The part of the core that the checks need."""

    def model_config(self, name: str, version: int = -1) -> dict[str, Any]:
        return CONFIGS[name]


def check(sequences: Sequences, model: str, *step: Any, caller: str = "") -> None:
    sequences.check(ModelAddress(model), SequenceStep(*step), caller)


def remembered(max_sequences: int = 8) -> Sequences:
    return Sequences(Configs(), max_sequences)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "id"),
    [("small", "a"), ("small", 2**31), ("text", 1), ("outer", "a"), ("outer", 2**31)],
)
def test_ids_that_do_not_fit(model, id):
    """An id of another type or size is refused, also within ensembles."""
    with pytest.raises(InvalidRequest, match="'sequence_id'"):
        check(remembered(), model, id, True)


@pytest.mark.parametrize(
    ("model", "id"),
    [("small", 2**31 - 1), ("text", "a"), ("no_id", "a"), ("no_id", 7), ("plain", "a"),
     ("outer", 7)],
)  # fmt: skip
def test_ids_that_fit(model, id):
    check(remembered(), model, id, True, True)


def test_start_through_an_ensemble_takes_the_sequence():
    """Its step is the same model: whoever had the sequence there has lost it."""
    sequences = remembered()
    check(sequences, "small", 7, True, caller="a")
    check(sequences, "outer", 7, True, caller="b")

    check(sequences, "small", 7, caller="b")
    with pytest.raises(InvalidRequest, match="sequence_start"):
        check(sequences, "small", 7, caller="a")


def test_sequence_ends():
    """After the end, the id needs a start."""
    sequences = remembered()
    check(sequences, "small", 7, True)
    check(sequences, "small", 7, False, True)

    with pytest.raises(InvalidRequest, match="sequence_start"):
        check(sequences, "small", 7)


def test_longest_unused_sequence_is_forgotten():
    """Beyond the limit, the one whose last request is oldest must start again."""
    sequences = remembered(max_sequences=2)
    check(sequences, "small", 1, True)
    check(sequences, "small", 2, True)
    check(sequences, "small", 1)
    check(sequences, "small", 3, True)

    check(sequences, "small", 1)
    with pytest.raises(InvalidRequest, match="sequence_start"):
        check(sequences, "small", 2)
