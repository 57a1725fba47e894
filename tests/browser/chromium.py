"""Debian's Chromium as `make setup-browser` unpacked it, and a gateway with scripted models."""

import os
import site
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.setup.clients import CHROMIUM, TOOLS
from scripts.setup.install import site_packages
from tests import mock_models
from tests.api.backends.repository import write_classifier
from tests.gateway_process import ROOT, GatewayProcess

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script> &amp; <b>bold</b>\x00\u202e"
REASONING = "<think>\nIs it wet?\n</think>\n\n"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bergen"}}\n</tool_call>'
ECHO_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_STRING dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_STRING dims: [ -1 ] }
"""
ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(each, "IN").as_numpy() for each in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each)]) for each in tensors]
"""
MODERATES = "moderation: {labels: {bad: hate, odd: violence}}\n"
TURNS: list[dict[str, Any]] = [
    {"contains": "hostile", "text": HOSTILE},
    {"contains": "rainy", "after": 0, "text": CALL},
    {"contains": "rainy", "text": '{"city": "Bergen", "rainy": true}'},
    {"contains": "endless", "text": "word " * 20_000},
    {"text": f"{REASONING}Triton serves models."},
]


def serve(folder: Path, *options: str) -> GatewayProcess:
    """`talker` has tools and reasoning, `plain` no tools; `sees` describes images and audio,
    `hears` transcribes, `sorts` classifies and moderates, `echo` returns its tensor; `broken` does
    not load.
    """
    repository = folder / "models"
    repository.mkdir()
    mock_models.write_with_turns(repository, "talker", TURNS, tokens_per_second=300)
    mock_models.write_with_tokenizer(repository, "plain", tokens=["Hel", "lo "], answer_tokens=8)
    mock_models.write_with_media(repository, "sees")
    write_classifier(repository, "sorts")
    (repository / "sorts" / "openai_frontend.yaml").write_text(MODERATES)
    mock_models.write_with_tokenizer(repository, "hears", audio_window_s=4, answer_tokens=2)
    folder_of_echo = mock_models.write(repository, "echo", config=ECHO_CONFIG)
    (folder_of_echo / "model.py").write_text(ECHO)
    mock_models.write(repository, "broken", fail_at_load="the weights are missing")
    explicit = ("--model-control-mode=explicit", "--load-model=*", "--enable-model-management")
    return GatewayProcess(repository, folder / "log", *explicit, *options)


# A test tone instead of a device, and no question whether the page may record it
MICROPHONE = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")


def executable() -> Path:
    """Fails if `make setup-browser` did not run."""
    return next((ROOT / CHROMIUM).glob("usr/lib/*/chromium-headless-shell"))


@contextmanager
def launched() -> Iterator[Any]:
    """A browser of Playwright's, whose package is in an environment of its own."""
    site.addsitedir(str(ROOT / site_packages(TOOLS / "browser")))
    from playwright.sync_api import sync_playwright

    libraries = {str(path.parent) for path in (ROOT / CHROMIUM).rglob("*.so*")}
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(sorted(libraries))}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable(), args=["--no-sandbox", *MICROPHONE], env=environment
        )
        yield browser
        browser.close()
