"""The gateway with vLLM 0.24 to 0.27, which lacks some methods and reports of newer versions."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from openai_frontend.engines.vllm import capabilities, versions
from openai_frontend.engines.vllm.media.images import SentMedia
from openai_frontend.engines.vllm.versions import Compatibility


async def test_prompts_are_processed_on_the_renderers_thread():
    """Before 0.27, vLLM's processor has no method for it. The event loop is not blocked."""
    seen: list[Any] = []

    def process_inputs(request_id: str, prompt: Any, params: Any, **options: Any) -> str:
        seen.append((request_id, prompt, params, options, threading.get_ident()))
        return "processed"

    with ThreadPoolExecutor(1) as executor:
        renderer = SimpleNamespace(_executor=executor)
        processor = SimpleNamespace(process_inputs=process_inputs, renderer=renderer)
        process = versions.process_inputs_async(processor)
        assert await process("r", "a prompt", "params", priority=1) == "processed"

    [(*arguments, thread)] = seen
    assert arguments == ["r", "a prompt", "params", {"priority": 1}]
    assert thread != threading.get_ident()


def test_own_method_of_newer_versions_is_used():
    processor = SimpleNamespace(process_inputs_async=object())

    assert versions.process_inputs_async(processor) is processor.process_inputs_async


@pytest.mark.parametrize(
    ("fields", "tolerates"), [({}, False), ({"enable_fault_tolerance": True}, True)]
)
def test_engines_before_0_27_tolerate_no_faults(fields, tolerates):
    """Their configuration has no such field."""
    assert versions.tolerates_faults(SimpleNamespace(**fields)) is tolerates


def test_every_request_has_its_media_if_the_engine_reports_no_losses(monkeypatch):
    """An engine before 0.28 fails a request without data for an image that it has lost."""
    lacks = Compatibility("0.27.1", {capabilities.MEDIA_CACHE.name: "it reports nothing"})
    monkeypatch.setattr(versions, "installed", lambda: lacks)
    engine = SimpleNamespace(input_processor=SimpleNamespace())  # no cache is looked up
    feature = SimpleNamespace(data="the image", mm_hash="h")
    sent = SentMedia(engine)

    sent.leave_out(SimpleNamespace(request_id="r", mm_features=[feature]))

    assert feature.data == "the image"
    assert sent.lost(SimpleNamespace(request_id="r")) is None
    assert not sent.unanswered
