"""Model folders for Triton's Python backend."""

from collections.abc import Mapping
from pathlib import Path

TENSOR = '{ name: "%s" data_type: TYPE_%s dims: [-1] }'

MODEL = '''
"""Gives back what `answer` makes of each input, under its name with OUT for IN."""

import numpy
import triton_python_backend_utils as pb_utils

%s

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(self.outputs(request)) for request in requests]

    def outputs(self, request):
        return [
            pb_utils.Tensor(given.name().replace("IN", "OUT", 1), answer(given.as_numpy()))
            for given in request.inputs()
        ]
'''

DECOUPLED = '''
"""Answers from a thread, so Triton releases a request before its first response."""

import threading

import triton_python_backend_utils as pb_utils

%s

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            threading.Thread(target=self.answer, args=(sender,)).start()

    def answer(self, sender):
        work(sender.is_cancelled)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''

ECHO = """
def answer(given):
    return given
"""

STRING = {"IN": "STRING"}

ENSEMBLE = """
platform: "ensemble"
input [{ name: "QUESTION" data_type: TYPE_STRING dims: [-1] }]
output [{ name: "REPLY" data_type: TYPE_STRING dims: [-1] }]
ensemble_scheduling { step [
  {
    model_name: "first" model_version: -1
    input_map { key: "IN" value: "QUESTION" }
    output_map { key: "OUT" value: "between" }
  },
  {
    model_name: "second" model_version: -1
    input_map { key: "IN" value: "between" }
    output_map { key: "OUT" value: "REPLY" }
  }
] }
"""


def write(
    repository: Path, name: str, *, answer: str = ECHO, inputs: Mapping[str, str] = STRING
) -> None:
    """A model whose module has the source `answer`, which defines the function `answer`;
    `inputs` maps names that begin with IN to their datatypes.
    """
    version = repository / name / "1"
    version.mkdir(parents=True)
    outputs = {given.replace("IN", "OUT", 1): datatype for given, datatype in inputs.items()}
    (repository / name / "config.pbtxt").write_text(
        f'backend: "python"\ninput [{_tensors(inputs)}]\noutput [{_tensors(outputs)}]\n'
    )
    (version / "model.py").write_text(MODEL % answer)


def write_decoupled(repository: Path, name: str, *, work: str) -> None:
    """A decoupled model that runs the function `work` of this source for each request, with a
    function that tells whether the request is cancelled, and then ends it without an answer.
    """
    write(repository, name)
    with (repository / name / "config.pbtxt").open("a") as config:
        config.write("model_transaction_policy { decoupled: true }\n")
    (repository / name / "1" / "model.py").write_text(DECOUPLED % work)


def write_backend(folder: Path, repository: Path) -> None:
    """A backend directory with the Python-based backend `own` and its model `model`."""
    write(repository, "model")
    config = repository / "model" / "config.pbtxt"
    config.write_text(config.read_text().replace('"python"', '"own"'))
    (folder / "own").mkdir(parents=True)
    (repository / "model" / "1" / "model.py").rename(folder / "own" / "model.py")


def write_ensemble(repository: Path) -> None:
    """Two models in sequence: the second gets the output of the first."""
    (repository / "ensemble" / "1").mkdir(parents=True)
    (repository / "ensemble" / "config.pbtxt").write_text(ENSEMBLE)


def _tensors(datatypes: Mapping[str, str]) -> str:
    return ", ".join(TENSOR % each for each in datatypes.items())
