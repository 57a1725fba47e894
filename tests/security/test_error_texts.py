"""A client that makes a model send an error with any text.

A model may quote its input in an error. Triton reports some failures only as the text of an error,
so a client could send that text.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import httpx
import psutil
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from openai_frontend.runtime import triton_interface
from openai_frontend.runtime.triton_interface import STUB, STUB_INSTANCE_AT
from tests.core.triton import python_models
from tests.gateway_process import GatewayProcess
from tests.resilience.faults.asking import client_of, unready

pytestmark = pytest.mark.slow

# `CODE after SECONDS: TEXT` is answered with that error, anything else with itself
QUOTING = """
import re
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        command = re.fullmatch(r"(\\w+) after (\\S+): (.*)", given[0].decode(), re.DOTALL)
        if command is None:
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", given)])
        code, seconds, text = command.groups()
        time.sleep(float(seconds))
        if code == "RAISED":
            raise pb_utils.TritonModelException(text)
        error = pb_utils.TritonError(text, getattr(pb_utils.TritonError, code))
        return pb_utils.InferenceResponse(error=error)
"""
FIELDS = {"first": ("IN", "OUT"), "second": ("IN", "OUT"), "ensemble": ("QUESTION", "REPLY")}
QUOTES = ["{}", "bad: {}", "bad: '{}'", "{} again", "in ensemble 'ensemble', {}", "{}\n\nAt:\n  x"]
# Which model fails, and how; their number has no factor in common with that of QUOTES
SOURCES = [("first", "INTERNAL"), ("ensemble", "INTERNAL"), ("first", "UNAVAILABLE")]
SOURCES += [("first", "RAISED"), ("ensemble", "RAISED")]
INSTANCES = ["first_0", "first_0_0", "second_0", "second_0_0", "ghost", "ghost_0", "", "'"]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("texts")
    python_models.write(folder / "models", "first")
    (folder / "models" / "first" / "1" / "model.py").write_text(QUOTING)
    python_models.write(folder / "models", "second")
    python_models.write_ensemble(folder / "models")
    with GatewayProcess(folder / "models", folder / "log") as process:
        process.wait_until_ready()
        yield process
        assert process.stop() == 0


def stubs(gateway: GatewayProcess) -> dict[str, int]:
    """The process of each instance."""
    children = psutil.Process(gateway.pid).children()
    commands = {child.pid: child.cmdline() for child in children}
    return {
        command[STUB_INSTANCE_AT]: pid
        for pid, command in commands.items()
        if command and command[0].endswith(STUB)
    }


def rows() -> list[str]:
    """What triton_interface has, and what its templates and patterns stand for."""
    texts = ["Failed to obtain the health mutex", "the database is not healthy"]
    for row in vars(triton_interface).values():
        if isinstance(row, str):
            texts += [row.format(instance=each, ensemble="ensemble") for each in INSTANCES]
        elif isinstance(row, re.Pattern):
            texts += examples(row)
    return list(dict.fromkeys(texts))


def unhealthy(instances: Iterable[str]) -> list[str]:
    """What the backend says of an unhealthy stub."""
    named = [triton_interface.UNHEALTHY_STUB.format(instance=each) for each in instances]
    return [*named, triton_interface.LOCKED_STUB, triton_interface.FULL_STUB]


def examples(pattern: "re.Pattern[str]") -> list[str]:
    found: list[str] = []

    @settings(
        max_examples=5,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.from_regex(pattern, alphabet=st.characters(min_codepoint=32, max_codepoint=126)))
    def collect(text: str) -> None:
        found.append(text)

    collect()
    return found


async def ask(client: httpx.AsyncClient, model: str, text: str) -> httpx.Response:
    return await client.post(f"/v2/models/{model}/generate", json={FIELDS[model][0]: text})


async def answers(client: httpx.AsyncClient) -> dict[str, Any]:
    """Each model's answer to a question of its own."""
    found = {}
    for model, (_, output) in FIELDS.items():
        answer = await ask(client, model, f"hi {model}")
        found[model] = answer.json().get(output, answer.text)
    return found


async def test_no_text_of_an_error_changes_anything_for_others(gateway):
    """Whatever a client makes a model's error say, at once or after the second that Triton's Python
    backend waits: the models' processes, health, readiness and answers stay as they were.
    """
    before = stubs(gateway)
    assert len(before) == 2
    commands = [
        (model, f"{code} after 0: {way.format(text)}")
        for (text, way), (model, code) in zip(
            itertools.product(rows(), QUOTES), itertools.cycle(SOURCES), strict=False
        )
    ]
    commands += [("first", f"INTERNAL after 1.2: {text}") for text in unhealthy(before)]

    async with client_of(gateway) as client:
        for model, command in commands:
            failed = await ask(client, model, command)
            assert failed.status_code >= 400, command

        assert stubs(gateway) == before
        assert await unready(client) == {}
        assert await answers(client) == {model: f"hi {model}" for model in FIELDS}
