"""A classifier whose scores count words, with one row for each text."""

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from tests.api.backends.standins.tensors import texts

WORDS = ("good", "bad", "odd")


class TritonPythonModel:
    """The share of each word. Some texts break the contract: "nan", "more rows", "more scores"."""

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.response(request) for request in requests]

    def response(self, request: Any) -> Any:
        asked = texts(request, "REVIEW")
        rows = [self.scores(text) for text in asked]
        if "more rows" in asked:
            rows.append(rows[0])
        if "more scores" in asked:
            rows = [[*row, 0.0] for row in rows]
        scores = np.asarray(rows[0] if self.alone else rows, np.float32)
        tensor = pb_utils.Tensor("SENTIMENT", scores)
        return pb_utils.InferenceResponse([tensor])

    def initialize(self, args: dict[str, str]) -> None:
        self.alone = args["model_name"] == "alone"

    def scores(self, text: str) -> list[float]:
        counts = [text.count(word) for word in WORDS]
        total = sum(counts) or float("nan" if text == "nan" else 1)
        return [each / total for each in counts]
