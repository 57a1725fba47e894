"""Triton's own queue behind ours, where a model's batcher keeps one."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import httpx
import pytest

from tests.prompting import tiny_tokenizer

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
import time

import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    served = 0

    def execute(self, requests):
        time.sleep(0.4)
        return [pb_utils.InferenceResponse([self.place()]) for _ in requests]

    def place(self):
        self.served += 1
        return pb_utils.Tensor("text_output", numpy.array([[str(self.served)]], dtype=object))
"""


def write(repository, name: str, options: str = "") -> None:
    """Says to each request which one it was, 0.4 s after it began; one after the other."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(CONFIG)
    (version / "model.py").write_text(MODEL)
    tokenizer = tiny_tokenizer.write(repository.parent / f"tokenizer of {name}")
    (repository / name / "openai_frontend.yaml").write_text(f"tokenizer: {tokenizer}\n{options}")


async def in_a_row(*asked: Coroutine[Any, Any, httpx.Response]) -> list[httpx.Response]:
    """The first is served at once, and the others come while it is."""
    tasks = []
    for each in asked:
        tasks.append(asyncio.create_task(each))
        await asyncio.sleep(0.03)
    return await asyncio.gather(*tasks)


@pytest.mark.slow
async def test_order_and_time(repository, live_gateway):
    """A request's priority is a level of the batcher's. Who waits there longer than the model's
    `queue_timeout_s`, or a time of its own, is refused as in our queue.
    """
    write(repository, "ordered")
    write(repository, "short", "queue_timeout_s: 0.2")
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["hi"]}
    tensors = {"inputs": [tensor], "parameters": {"timeout": 50_000, "priority": 3}}
    async with live_gateway() as gateway:
        await gateway.complete("ordered")  # the first one takes longer
        await gateway.complete("short")
        priorities = (0, 0, 1, -1)
        ordered = await in_a_row(*(gateway.complete("ordered", priority=at) for at in priorities))
        first, late = await in_a_row(gateway.complete("short"), gateway.complete("short"))
        first_of_it, with_its_own_time = await in_a_row(
            gateway.complete("ordered"),
            gateway.client.post("/v2/models/ordered/infer", json=tensors),
        )

    assert [each.json()["choices"][0]["text"] for each in ordered] == ["2", "4", "5", "3"]
    assert [each.status_code for each in (first, first_of_it)] == [200, 200]
    assert (late.status_code, late.json()["error"]["code"]) == (503, "queue_timeout")
    assert late.headers["retry-after"]
    assert with_its_own_time.status_code == 503
