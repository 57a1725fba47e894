"""`model_repository` as `make serve` serves it: all demo models on one port."""

import json
import shlex
import subprocess
from typing import Any

import httpx
import numpy as np
import pytest

from tests import recordings
from tests.gateway_process import GatewayProcess
from tests.printed_examples import curl_commands

pytestmark = pytest.mark.engine


def capabilities(gateway: GatewayProcess) -> dict[str, Any]:
    listed = httpx.get(f"{gateway.url}/v1/models").json()["data"]
    return {each["id"]: each["capabilities"] for each in listed if "@" not in each["id"]}


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
    """One curl line each for chat, completions, embeddings, moderation, an image and a
    transcription. The last three load their model, whose card had told what it can do.
    """
    default_gateway.wait_for_line("print(")  # it may be ready before it prints them
    lines = [*curl_commands(default_gateway.output())]
    before = capabilities(default_gateway)
    engines = len(default_gateway.engine_processes())
    paths, answers = [], []
    for line in lines:
        paths.append(shlex.split(line)[1].partition("/v1/")[2])
        command = ["/bin/bash", "-c", f"{line} -sS"]  # it encodes the picture
        shown = subprocess.run(command, capture_output=True, check=True, text=True)
        answers.append(json.loads(shown.stdout))

    images = "chat/completions"
    spoken = "audio/transcriptions"
    assert paths == ["chat/completions", "completions", "embeddings", "moderations", images, spoken]
    assert answers[3]["results"][0]["flagged"] is True
    assert answers[4]["choices"][0]["message"]["content"] == "I see a red circle."
    assert answers[5]["text"] == recordings.read("english").text().strip()
    assert (engines, len(default_gateway.engine_processes())) == (2, 4)
    assert capabilities(default_gateway) == before
