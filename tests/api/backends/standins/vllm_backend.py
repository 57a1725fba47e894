"""The model of NVIDIA's vLLM backend: vLLM's own engine on a thread of the stub."""

import asyncio
import json
import os
import queue
import threading
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from tests.api.backends.standins.configs import NVIDIAS
from tests.api.backends.standins.tensors import FINAL, failure, scalar, strings, text

# One process for engine and executor, and no network
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
}


class TritonPythonModel:
    """Decoupled, without a batch dimension; `model.json` has vLLM's engine arguments."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Users' configs have only the backend's name."""
        for side, add in (("input", config.add_input), ("output", config.add_output)):
            for name, said in NVIDIAS["vllm"][side].items():
                add({"name": name, **said})
        config.set_model_transaction_policy({"decoupled": True})
        config.set_max_batch_size(0)
        return config

    def initialize(self, args: dict[str, str]) -> None:
        folder = Path(pb_utils.get_model_dir())
        self.arguments = json.loads((folder / "model.json").read_text())
        self.adapters: dict[str, str] = {}
        if str(self.arguments.get("enable_lora")).lower() == "true":
            self.arguments["enable_lora"] = True
            self.adapters = json.loads((folder / "multi_lora.json").read_text())
        os.environ.update(_ENVIRONMENT)
        self.loop = asyncio.new_event_loop()
        # A daemon: if the engine does not start, the loop is never stopped
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.engine = asyncio.run_coroutine_threadsafe(self.start(), self.loop).result()
        self.responses: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.sender = threading.Thread(target=self.send)
        self.sender.start()

    async def start(self) -> Any:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        return AsyncLLM.from_engine_args(AsyncEngineArgs(**self.arguments))

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            asyncio.run_coroutine_threadsafe(self.answer(request), self.loop)

    def finalize(self) -> None:
        self.responses.put(None)
        self.sender.join()
        self.loop.call_soon_threadsafe(self.engine.shutdown)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()

    def send(self) -> None:
        """Sending waits for Triton, which must not block the engine's loop."""
        while (item := self.responses.get()) is not None:
            answer, response, flags = item
            answer.sender.send(response, flags=flags)
            if flags != FINAL:
                answer.cancelled = answer.cancelled or answer.sender.is_cancelled()

    async def answer(self, request: Any) -> None:
        answer = _Answer(request)
        try:
            if text(request, "embedding_request") is not None:
                raise ValueError("The model does not support Embeddings API")
            await self.generate(answer, request)
        except Exception as error:  # noqa: BLE001  NVIDIA's tells each of them
            told = failure(f"Error generating stream: {error}")
            self.responses.put((answer, told, FINAL))

    async def generate(self, answer: "_Answer", request: Any) -> None:
        given = json.loads(text(request, "sampling_parameters") or "{}")
        name = given.pop("lora_name", None)
        if name is not None and name not in self.adapters:
            raise ValueError(f"LoRA {name} is not supported, we currently support {self.adapters}")
        request_id = uuid.uuid4().hex
        outputs = self.engine.generate(
            text(request, "text_input"),
            _sampling_params(given),
            request_id,
            lora_request=self.adapter(name),
        )
        output = None
        async for output in outputs:
            if answer.cancelled or (not answer.streams and answer.sender.is_cancelled()):
                await self.engine.abort(request_id)
                break
            if answer.streams:
                flags = FINAL if output.finished else 0
                self.responses.put((answer, answer.response(output), flags))
        if answer.cancelled and answer.streams:
            code = pb_utils.TritonError.CANCELLED
            self.responses.put((answer, failure("Request was cancelled", code), FINAL))
        elif not answer.streams:
            self.responses.put((answer, answer.response(output), FINAL))

    def adapter(self, name: str | None) -> Any:
        if name is None:
            return None
        from vllm.lora.request import LoRARequest

        number = list(self.adapters).index(name) + 1
        return LoRARequest(str(number), number, self.adapters[name])


def _sampling_params(given: dict[str, Any]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    constraint = given.pop("structured_outputs", None)
    if constraint is not None:
        given["structured_outputs"] = StructuredOutputsParams(**json.loads(constraint))
    return SamplingParams(**given)


class _Answer:
    """The part of the answer already sent: vLLM returns the complete text each time."""

    def __init__(self, request: Any) -> None:
        self.request = request
        self.sender = request.get_response_sender()
        self.streams = bool(scalar(request, "stream", False))
        self.cancelled = False
        excludes = scalar(request, "exclude_input_in_output", self.streams)
        if self.streams and not excludes:
            raise ValueError("When streaming, `exclude_input_in_output` = False is not allowed.")
        self.excludes = excludes
        self.told: dict[str, int] = {"text": 0, "token_ids": 0, "logprobs": 0}

    def response(self, output: Any) -> Any:
        first = not self.told["token_ids"] and not self.excludes
        [said] = output.outputs
        new = self.fresh("text", said.text)
        outputs = [strings("text_output", [(output.prompt if first else "") + new])]
        count = len(self.fresh("token_ids", said.token_ids))
        if self.asks("finish_reason"):
            outputs.append(strings("finish_reason", [str(said.finish_reason)]))
        if self.asks("cumulative_logprob"):
            total = np.array([said.cumulative_logprob or np.nan], np.float32)
            outputs.append(pb_utils.Tensor("cumulative_logprob", total))
        if self.asks("logprobs"):
            outputs.append(strings("logprobs", [self.logprobs(said.logprobs)]))
        if self.asks("num_input_tokens"):
            number = np.asarray(len(output.prompt_token_ids), np.uint32)  # a scalar
            outputs.append(pb_utils.Tensor("num_input_tokens", number))
        if self.asks("num_output_tokens"):
            outputs.append(pb_utils.Tensor("num_output_tokens", np.array([count], np.uint32)))
        return pb_utils.InferenceResponse(outputs)

    def asks(self, output: str) -> bool:
        return bool(scalar(self.request, f"return_{output}", False))

    def fresh(self, name: str, whole: Any) -> Any:
        start, self.told[name] = self.told[name], len(whole)
        return whole[start:]

    def logprobs(self, told: Any) -> str:
        if told is None:
            return "null"
        return json.dumps(
            [
                {
                    token_id: {
                        "logprob": each.logprob,
                        "rank": each.rank,
                        "decoded_token": each.decoded_token,
                    }
                    for token_id, each in position.items()
                }
                for position in self.fresh("logprobs", told)
            ]
        )
