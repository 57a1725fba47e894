"""The demo classifier for Triton's Python backend."""

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from scoring import Scorer


class TritonPythonModel:
    """One row of scores for each text."""

    def initialize(self, args):
        folder = Path(args["model_repository"]) / args["model_version"]
        self._scorer = Scorer(folder)

    def execute(self, requests):
        return [self._response(request) for request in requests]

    def _response(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().reshape(-1)
        rows = [self._scorer.scores(each.decode("utf-8", "replace")) for each in texts]
        scores = np.asarray(rows, np.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SCORES", scores)])
