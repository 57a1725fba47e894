"""`model_repository` as `make serve` serves it: all demo models on one port."""

import json
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from tests import recordings
from tests.gateway_process import ROOT, GatewayProcess

pytestmark = pytest.mark.engine

LONG = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "stream": True} | {
    "ignore_eos": True,
    "max_tokens": 1900,
}


@pytest.fixture(scope="module")
def default_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """The last test of this module stops it."""
    log = tmp_path_factory.mktemp("default") / "log"
    with GatewayProcess(ROOT / "model_repository", log) as process:
        process.wait_until_ready()
        yield process


def capabilities(gateway: GatewayProcess) -> dict[str, Any]:
    listed = httpx.get(f"{gateway.url}/v1/models").json()["data"]
    return {each["id"]: each["capabilities"] for each in listed if "@" not in each["id"]}


@pytest.fixture
def default_client(default_gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    url = f"{default_gateway.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def test_chat_and_completions(default_client):
    """The demo model answers a chat and completes a text."""
    messages = [{"role": "user", "content": "What is Triton?"}]
    chat = default_client.chat.completions.create(model="demo", messages=messages)
    completion = default_client.completions.create(model="demo", prompt="Triton is", max_tokens=8)

    assert "NVIDIA" in chat.choices[0].message.content
    assert completion.choices[0].text


def test_sentences_on_one_subject_have_close_embeddings(default_client):
    """The vectors have length 1, and two sentences about the weather are closer than a third."""
    texts = ["Will it rain tonight?", "Showers are expected.", "The striker scored a goal."]
    answer = default_client.embeddings.create(model="demo-embedding", input=texts)

    rain, showers, football = (np.array(item.embedding) for item in answer.data)
    assert [rain @ rain, showers @ showers] == pytest.approx([1, 1], abs=1e-4)
    assert rain @ showers > 0.5 > rain @ football


def test_examples_of_the_ready_message_work(default_gateway):
    """One curl line each for chat, completions, embeddings, an image and a transcription. The last
    two load their model, whose card had told what it can do.
    """
    lines = [line for line in default_gateway.output().splitlines() if line.startswith("curl ")]
    before = capabilities(default_gateway)
    engines = len(default_gateway.engine_processes())
    paths, answers = [], []
    for line in lines:
        words = shlex.split(line)
        paths.append(words[1].removeprefix(f"{default_gateway.url}/v1/"))
        shown = subprocess.run([*words, "-sS"], capture_output=True, check=True, text=True)
        answers.append(json.loads(shown.stdout))

    images = "chat/completions"
    spoken = "audio/transcriptions"
    assert paths == ["chat/completions", "completions", "embeddings", images, spoken]
    assert answers[3]["choices"][0]["message"]["content"] == "I see a red circle."
    assert answers[4]["text"] == recordings.read("english").text().strip()
    assert (engines, len(default_gateway.engine_processes())) == (2, 4)
    assert capabilities(default_gateway) == before


def test_ctrl_c_waits_for_a_running_stream(default_gateway):
    """A stream that runs during Ctrl-C is answered completely; then the process exits with 0."""
    with httpx.stream("POST", f"{default_gateway.url}/v1/chat/completions", json=LONG) as response:
        lines = response.iter_lines()
        next(lines)
        engines = default_gateway.engine_processes()
        default_gateway.interrupt_group()
        last = [line for line in lines if line][-1]

    assert last == "data: [DONE]"
    assert default_gateway.wait() == 0
    assert len(engines) == 4
    assert [engine for engine in engines if engine.is_running()] == []
