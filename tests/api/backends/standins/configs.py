"""Configs of the stand-ins: the inputs and outputs of NVIDIA's models, and a test's settings."""

import json
from collections.abc import Mapping
from typing import Any

from openai_frontend.cli import pbtxt as model_config_text
from tests.api.backends.standins import ensemble_steps
from tests.gateway_process import ROOT

NVIDIAS = json.loads((ROOT / "tests" / "data" / "nvidia_tensors.json").read_text())
# Datatypes that NVIDIA's templates leave open
_OPEN = {"logits_datatype": "TYPE_FP32", "encoder_input_features_data_type": "TYPE_FP16"}

Tensors = Mapping[str, Mapping[str, Any]]

CHAT: Mapping[str, Tensors] = {
    "input": {
        "QUESTION": {"data_type": "TYPE_STRING", "dims": [1]},
        "LIMIT": {"data_type": "TYPE_INT32", "dims": [1], "optional": True},
        "HEAT": {"data_type": "TYPE_FP32", "dims": [1], "optional": True},
    },
    "output": {"REPLY": {"data_type": "TYPE_STRING", "dims": [1]}},
}

ONE_VOICE: Mapping[str, Tensors] = {
    "input": {"target_text": {"data_type": "TYPE_STRING", "dims": [1]}},
    "output": {"waveform": {"data_type": "TYPE_FP32", "dims": [-1]}},
}
SPEECH: Mapping[str, Tensors] = {
    "input": {
        **ONE_VOICE["input"],
        "speaker": {"data_type": "TYPE_STRING", "dims": [1], "optional": True},
        "pace": {"data_type": "TYPE_FP32", "dims": [1], "optional": True},
    },
    "output": ONE_VOICE["output"],
}


def classifier(*, texts: int, scores: list[int], labels: str | None) -> Mapping[str, Tensors]:
    """One text or, with -1, any number of them; the scores have a file of labels, or none."""
    file = {} if labels is None else {"label_filename": labels}
    return {
        "input": {"REVIEW": {"data_type": "TYPE_STRING", "dims": [texts]}},
        "output": {"SENTIMENT": {"data_type": "TYPE_FP32", "dims": scores, **file}},
    }


def sparse(*, dense: bool, indices: str) -> Mapping[str, Tensors]:
    """A text in, and the entries of a sparse vector out; beside a dense one."""
    vector = {"embedding": {"data_type": "TYPE_FP32", "dims": [4]}} if dense else {}
    return {
        "input": {"text_input": {"data_type": "TYPE_STRING", "dims": [1]}},
        "output": {
            "sparse_indices": {"data_type": f"TYPE_{indices}", "dims": [-1]},
            "sparse_values": {"data_type": "TYPE_FP32", "dims": [-1]},
            **vector,
        },
    }


_STEPS = {
    "preprocessing": ensemble_steps.PREPROCESSING_MAPS,
    "tensorrt_llm": ensemble_steps.ENGINE_MAPS,
    "postprocessing": ensemble_steps.POSTPROCESSING_MAPS,
}


def pbtxt(
    tensors: str | Mapping[str, Tensors],
    *,
    max_batch_size: int = 0,
    decoupled: bool | None = None,
    parameters: Mapping[str, str] | None = None,
) -> str:
    """The config.pbtxt of a Python model with the tensors of one of NVIDIA's, or with its own;
    with `decoupled` None the model sets the policy.
    """
    policy = {} if decoupled is None else {"model_transaction_policy": {"decoupled": decoupled}}
    return model_config_text.write(
        {
            "backend": "python",
            "max_batch_size": max_batch_size,
            **policy,
            **_sides(NVIDIAS[tensors] if isinstance(tensors, str) else tensors),
            "parameters": {
                key: {"string_value": value} for key, value in (parameters or {}).items()
            },
            "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
        }
    )


def ensemble(max_batch_size: int) -> str:
    """The config.pbtxt of NVIDIA's ensemble."""
    return model_config_text.write(
        {
            "platform": "ensemble",
            "max_batch_size": max_batch_size,
            **_sides(NVIDIAS["ensemble"]),
            "ensemble_scheduling": {"step": [_step(*each) for each in _STEPS.items()]},
        }
    )


def one_step(model: str, tensors: str, max_batch_size: int) -> str:
    """The config.pbtxt of an ensemble whose only step has the same tensors."""
    said = NVIDIAS[tensors]
    return model_config_text.write(
        {
            "platform": "ensemble",
            "max_batch_size": max_batch_size,
            **_sides(said),
            "ensemble_scheduling": {
                "step": [
                    {
                        "model_name": model,
                        "model_version": -1,
                        "input_map": {name: name for name in said["input"]},
                        "output_map": {name: name for name in said["output"]},
                    }
                ]
            },
        }
    )


def _sides(tensors: Mapping[str, Tensors]) -> dict[str, Any]:
    return {
        side: [
            {"name": name, **said, "data_type": _OPEN.get(said["data_type"], said["data_type"])}
            for name, said in named.items()
        ]
        for side, named in tensors.items()
    }


def _step(model: str, maps: Mapping[str, str]) -> dict[str, Any]:
    pairs = {
        side: [line.split() for line in text.splitlines() if line] for side, text in maps.items()
    }
    return {
        "model_name": model,
        "model_version": -1,
        **{side: {pair[0]: pair[-1] for pair in lines} for side, lines in pairs.items()},
    }
