"""`postprocessing` of a TensorRT-LLM pipeline: token ids in, text out."""

import json
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from tests.api.backends.standins.tensors import array, parameter, strings


class TritonPythonModel:
    """Has no state between responses: each is detokenized alone."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        folder = Path(parameter(config, "tokenizer_dir"))
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.skips = parameter(config, "skip_special_tokens", "true").lower() == "true"

    def execute(self, requests: list[Any]) -> list[Any]:
        return [
            pb_utils.InferenceResponse([strings("OUTPUT", self.texts(each))]) for each in requests
        ]

    def texts(self, request: Any) -> list[str]:
        tokens, lengths = array(request, "TOKENS_BATCH"), array(request, "SEQUENCE_LENGTH")
        return [
            self.tokenizer.decode(ids[:length].tolist(), skip_special_tokens=self.skips)
            for beams, counts in zip(tokens, lengths, strict=True)
            for ids, length in zip(beams, counts, strict=True)
        ]
