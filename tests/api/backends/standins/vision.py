"""A model that sees: it answers with its prompt and what it got of images, as JSON.

Like NVIDIA's, it fetches a URL that it does not know how to decode.
"""

import base64
import json
from typing import Any

import triton_python_backend_utils as pb_utils

from tests.api.backends.standins.configs import NVIDIAS
from tests.api.backends.standins.tensors import FINAL, array, scalar, strings, texts

_STRINGS = ("image", "image_url", "image_url_input")
_ARRAYS = ("image_input", "image_bytes_input", "image_sizes_input", "prompt_table_extra_id")


class TritonPythonModel:
    """With the tensors of NVIDIA's vLLM backend, LLM-API model or multimodal ensemble."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """NVIDIA's vLLM backend adds its tensors itself; the other configs have them."""
        if config.as_dict()["backend"] == "vllm":
            for side, add in (("input", config.add_input), ("output", config.add_output)):
                for name, said in NVIDIAS["vllm"][side].items():
                    add({"name": name, **said})
            config.set_max_batch_size(0)
            config.set_model_transaction_policy({"decoupled": True})
        return config

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.decoupled = config["model_transaction_policy"]["decoupled"]
        self.batches = config["max_batch_size"] > 0
        self.fetches = config["backend"] != "vllm"
        # The ensemble's preprocessing has the first only
        self.known = ("data:image/jpeg;base64,",) if self.batches else ("data:",)

    def execute(self, requests: list[Any]) -> list[Any] | None:
        if not self.decoupled:
            return [self.answer(request) for request in requests]
        for request in requests:
            request.get_response_sender().send(self.answer(request), flags=FINAL)
        return None

    def answer(self, request: Any) -> Any:
        told: dict[str, Any] = {"prompt": texts(request, "text_input")[0]}
        for name in _STRINGS:
            if given := texts(request, name):
                told[name] = [self.described(each) for each in given]
        told |= {name: "given" for name in _ARRAYS if array(request, name) is not None}
        outputs = [strings("text_output", [json.dumps(told)])]
        if scalar(request, "return_finish_reason", False):
            outputs.append(strings("finish_reason", ["stop"]))
        return pb_utils.InferenceResponse(outputs)

    def described(self, given: str) -> str:
        """The first bytes of what it decodes, or that it would fetch."""
        if self.fetches and not given.startswith(self.known):
            return "fetched"
        return base64.b64decode(given.rpartition(",")[2])[:4].hex()
