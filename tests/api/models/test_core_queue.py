"""Triton's own queue behind the gateway's, for models whose batcher has one."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.api.models.conftest import LiveGateway
from tests.fast.prompting import tiny_tokenizer
from tests.resilience.faults.asking import until

CONFIG = """
backend: "python"
max_batch_size: 1
input [{ name: "text_input" data_type: TYPE_STRING dims: [1] }]
output [{ name: "text_output" data_type: TYPE_STRING dims: [1] }]
instance_group [{ kind: KIND_CPU count: 1 }]
dynamic_batching {
  priority_levels: 3
  default_priority_level: 2
  default_queue_policy {
    allow_timeout_override: true default_timeout_microseconds: 60000000 timeout_action: REJECT
  }
}
"""

MODEL = """
import pathlib
import time

import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    served = 0

    def execute(self, requests):
        pathlib.Path({begun!r}).touch()
        while not pathlib.Path({gate!r}).exists():
            time.sleep(0.005)
        return [pb_utils.InferenceResponse([self.place()]) for _ in requests]

    def place(self):
        self.served += 1
        return pb_utils.Tensor("text_output", numpy.array([[str(self.served)]], dtype=object))
"""


class Held:
    """A model that says to each request which one it was, one after the other; it holds the one
    that it works on for as long as its gate is shut.
    """

    def __init__(self, repository: Path, name: str, options: str = "") -> None:
        """Writes its folder; the gate is open."""
        self.name = name
        self._begun = repository.parent / f"{name}.begun"
        self._gate = repository.parent / f"{name}.gate"
        self._gate.touch()
        version = repository / name / "1"
        version.mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(CONFIG)
        source = MODEL.format(begun=str(self._begun), gate=str(self._gate))
        (version / "model.py").write_text(source)
        tokenizer = tiny_tokenizer.write(repository.parent / f"tokenizer of {name}")
        options = f"tokenizer: {tokenizer}\n{options}"
        (repository / name / "openai_frontend.yaml").write_text(options)

    async def in_a_row(
        self,
        gateway: LiveGateway,
        *asked: Coroutine[Any, Any, httpx.Response],
        held_s: float = 0,
    ) -> list[httpx.Response]:
        """The first is at work for `held_s` at least; the others come after it, in this order."""
        self._begun.unlink()
        self._gate.unlink()
        tasks = []
        try:
            for place, each in enumerate(asked):
                tasks.append(asyncio.create_task(each))
                await until(partial(self._is_full, gateway, place))
            await asyncio.sleep(held_s)
        finally:
            self._gate.touch()
        return await asyncio.gather(*tasks)

    async def _is_full(self, gateway: LiveGateway, waiting: int) -> bool:
        """One is at work, and as many wait, as the core counts them."""
        text = await asyncio.to_thread(gateway.server.metrics)
        return self._begun.exists() and waiting == sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "nv_inference_pending_request_count"
            and sample.labels["model"] == self.name
        )


@pytest.mark.slow
async def test_order_and_time(repository, live_gateway):
    """A request's priority is a level of the batcher's. Who waits there longer than the model's
    `queue_timeout_s`, or a time of its own, is refused as in our queue.
    """
    model = Held(repository, "ordered")
    short = Held(repository, "short", "queue_timeout_s: 0.2")
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["hi"]}
    tensors = {"inputs": [tensor], "parameters": {"timeout": 50_000, "priority": 3}}
    async with live_gateway() as gateway:
        await gateway.complete("ordered")
        await gateway.complete("short")
        priorities = (0, 0, 1, -1)
        ordered = await model.in_a_row(
            gateway, *(gateway.complete("ordered", priority=at) for at in priorities)
        )
        first, late = await short.in_a_row(
            gateway, gateway.complete("short"), gateway.complete("short"), held_s=0.3
        )
        first_of_it, with_its_own_time = await model.in_a_row(
            gateway,
            gateway.complete("ordered"),
            gateway.client.post("/v2/models/ordered/infer", json=tensors),
            held_s=0.1,
        )

    assert [each.json()["choices"][0]["text"] for each in ordered] == ["2", "4", "5", "3"]
    assert [each.status_code for each in (first, first_of_it)] == [200, 200]
    assert (late.status_code, late.json()["error"]["code"]) == (503, "queue_timeout")
    assert late.headers["retry-after"]
    assert with_its_own_time.status_code == 503
