"""An embedding model with the tensors of NVIDIA's vLLM backend."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from tests.api.backends.standins.llama import Llama
from tests.api.backends.standins.tensors import failure, parameter, scalar, strings, text


class TritonPythonModel:
    """A text's vector is the mean of its tokens' embeddings, normalized to length one."""

    def initialize(self, args: dict[str, str]) -> None:
        weights = Path(parameter(json.loads(args["model_config"]), "weights"))
        self.embeddings = Llama(weights).embeddings
        self.tokenizer = Tokenizer.from_file(str(weights / "tokenizer.json"))

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.response(request) for request in requests]

    def response(self, request: Any) -> Any:
        asked = json.loads(text(request, "embedding_request") or "{}")
        given = asked["input"]
        ids = self.tokenizer.encode(given).ids if isinstance(given, str) else given
        if not ids:
            return failure("there is nothing to embed")
        vector = self.embeddings[ids].mean(axis=0)
        for dimensions in asked.get("pooling_params", {}).get("dimensions", ()):
            vector = vector[:dimensions]
        vector = vector / np.linalg.norm(vector)
        outputs = [strings("text_output", [json.dumps(vector.tolist())])]
        if scalar(request, "return_num_input_tokens", False):
            number = np.asarray(len(ids), np.uint32)  # a scalar, as in NVIDIA's
            outputs.append(pb_utils.Tensor("num_input_tokens", number))
        return pb_utils.InferenceResponse(outputs)
