"""An embedder of sparse vectors: the number of each word, at the word's place in a vocabulary."""

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from tests.api.backends.standins.tensors import texts

WORDS = ("zero", "one", "two", "three")
BROKEN = {
    "nan": (0, float("nan")),
    "infinite": (0, float("inf")),
    "negative": (-1, 1.0),
    "large": (2**31, 1.0),
}


class TritonPythonModel:
    """Some texts break the contract: "nan", "infinite", "negative", "twice", "longer"."""

    def initialize(self, args: dict[str, str]) -> None:
        self.dense = args["model_name"] == "both"

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.response(request) for request in requests]

    def response(self, request: Any) -> Any:
        (text,) = texts(request, "text_input")
        counts = [text.split().count(word) for word in WORDS]
        entries = [(at, count) for at, count in enumerate(counts) if count or "zeros" in text]
        entries = entries[::-1]  # in any order
        indices, values = [at for at, _ in entries], [count / 2 for _, count in entries]
        if text in BROKEN:
            index, value = BROKEN[text]
            indices, values = [index], [value]
        if text == "twice":
            indices, values = [3, 3], [1.0, 1.0]
        if text == "longer":
            values = [1.0]
        outputs = [
            pb_utils.Tensor("sparse_indices", np.asarray(indices, np.int64)),
            pb_utils.Tensor("sparse_values", np.asarray(values, np.float32)),
        ]
        if self.dense:
            outputs.append(pb_utils.Tensor("embedding", np.asarray(counts, np.float32)))
        return pb_utils.InferenceResponse(outputs)
