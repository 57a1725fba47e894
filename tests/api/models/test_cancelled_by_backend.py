"""A backend reports a request as cancelled although its client is still there: the client gets an
error, not silence.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.models.conftest import Live, LiveGateway
from tests.core.triton import python_models
from tests.core.triton.waiting import until

pytestmark = pytest.mark.slow  # the stub's start

# Like NVIDIA's vLLM backend. `at_once`: not only after the core has cancelled the request.
MODEL = """
import threading, time

import numpy
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            [given] = request.inputs()
            at_once = given.as_numpy()[0] == b"at once"
            sender = request.get_response_sender()
            threading.Thread(target=self.answer, args=(sender, at_once)).start()

    def answer(self, sender, at_once):
        text = pb_utils.Tensor("OUT", numpy.array([b"text"], dtype=object))
        sender.send(pb_utils.InferenceResponse([text]))
        while not (at_once or sender.is_cancelled()):
            time.sleep(0.01)
        error = pb_utils.TritonError("Request was cancelled", pb_utils.TritonError.CANCELLED)
        sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
"""

STOPPING = {"error": "the server is stopping"}
FAILED = {"error": "The server had an error while processing your request."}


@pytest.fixture
def cancelling(repository: Path, live_gateway: Live) -> Live:
    """Starts a gateway with the model."""
    python_models.write_decoupled(repository, "cancels", work="")
    (repository / "cancels" / "1" / "model.py").write_text(MODEL)
    return live_gateway


async def ask(gateway: LiveGateway, path: str, text: str) -> httpx.Response:
    return await gateway.client.post(f"/v2/models/cancels/{path}", json={"IN": [text]})


def last_event(response: httpx.Response) -> Any:
    assert response.status_code == 200
    *_, last, end = response.text.split("\n\n")
    assert end == ""
    return json.loads(last.removeprefix("data: "))


async def test_while_the_server_runs(cancelling):
    """The model has failed."""
    async with cancelling() as gateway:
        whole = await ask(gateway, "generate", "at once")
        stream = await ask(gateway, "generate_stream", "at once")

    assert (whole.status_code, whole.json()) == (500, FAILED)
    assert last_event(stream) == FAILED


async def test_when_the_server_stops(cancelling):
    """The requests that the core ends get the same error as those of engines in the process."""
    async with cancelling() as gateway:
        asked = [
            asyncio.create_task(ask(gateway, path, "later"))
            for path in ("generate", "generate_stream")
        ]
        await until(lambda: [each.received for each in gateway.server.streams()] == [1, 1])
        await gateway.server.stop()
        whole, stream = await asyncio.gather(*asked)

    assert (whole.status_code, whole.json()) == (503, STOPPING)
    assert whole.headers["retry-after"] == "5"
    assert last_event(stream) == STOPPING
