"""OpenAI's guardrails over `/v1/moderations`, and NeMo Guardrails over chats, in their own
environment.
"""

import shutil
from typing import Any

import pytest

from tests import mock_models
from tests.clients.environments import Environment
from tests.gateway_process import ROOT, GatewayProcess

pytestmark = pytest.mark.slow

KIND, RUDE = "The weather is nice.", "You are an idiot."
CHECKS = [
    {"contains": "message be blocked? I will stab", "text": "Yes"},
    {"contains": "answer be blocked? You are", "text": "Yes"},
    {"contains": "be blocked?", "text": "No"},
    {"contains": "Insult me.", "text": RUDE},
    {"text": KIND},
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each client let pass."""
    folder = tmp_path_factory.mktemp("guardrails")
    models, classifier = folder / "models", ROOT / "model_repository" / "demo-classifier"
    shutil.copytree(classifier, models / "demo-classifier")
    for name, text in (("kind", KIND), ("rude", RUDE)):
        mock_models.write_with_tokenizer(models, name, tokens=[text], answer_tokens=1)
    mock_models.write_with_turns(models, "checks", CHECKS)
    stubs = "--backend-config=python:stub-timeout-seconds=600"
    with GatewayProcess(models, folder / "log", stubs) as gateway:
        gateway.wait_until_ready()
        return Environment("guardrails").ask("ask_guardrails", f"{gateway.url}/v1")


def test_moderation_guardrail_reads_the_categories(found):
    """It asks for the alias `omni-moderation-latest`, before and after the chat."""
    assert found["openai"] == {"passed": KIND, "prompt": "violence", "output": "harassment"}


def test_rails_check_prompt_and_answer_by_chats(found):
    assert found["nemo"] == {
        "passed": KIND,
        "prompt": "self check input",
        "output": "self check output",
    }
