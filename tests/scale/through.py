"""A pytest plugin: `--through ROUTER` puts a router in front of each gateway that tests start, so
that any part of the suite runs through it (`tests/scale/test_api_suite.py`).
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import pytest

from openai_frontend.serving.request.field_policy import (
    NEUTRAL_IN_CLASSIFICATION,
    NEUTRAL_IN_EMBEDDINGS,
)

if TYPE_CHECKING:  # pytest rewrites the assertions of both when the suite's conftest loads them
    from tests.gateway_process import GatewayProcess
    from tests.scale.routers import Router

_FIELDS = "tests/api/conformance/test_refused_fields.py::"
_UNSUPPORTED = f"{_FIELDS}test_unsupported_field_is_refused_by_name["
_BOTH = {
    **{
        f"{_UNSUPPORTED}embeddings.{field}]": "drops fields of embeddings that it does not know"
        for field in NEUTRAL_IN_EMBEDDINGS
    },
    f"{_FIELDS}test_assistant_fields_that_no_template_renders_are_refused[fields0": "drops fields "
    "of messages that it does not know",
}
_OWN_VALIDATION = "refuses the request itself, with another error"
_TOOL_CHOICE = f"{_FIELDS}test_tool_choice_without_tools_is_refused"
_NO_CHOICE = "tests/api/conformance/test_accepted_fields.py::test_tool_choice_without_tools"
_METRICS, _OWN_METRICS = "tests/api/test_metrics.py::", "/metrics is the router's"
_IMAGES, _SPEECH = "tests/api/test_images.py::", "tests/api/test_demo_speech.py::"
_NO_CONVERSATIONS = {
    f"{_IMAGES}{test}": "embeds texts only: 422 without `input`"
    for test in (
        "test_conversation_with_images_is_embedded",
        "test_variables_of_the_template_reach_an_embedded_conversation",
        "test_embedded_conversation_is_rendered_as_a_chat",
        "test_end_of_an_embedded_conversation_is_as_asked",
        "test_input_and_messages_exclude_each_other",
    )
}
_NO_FILES = "takes JSON only: 400 for a file"
_ONE_MODEL = "serves one model of a gateway"
_NO_TOKENS = "has no /tokenize and no /render"
_NO_TOOLS = f"{_FIELDS}test_tools_are_refused_without_tools_in_the_template[tool1]"
# What a router changes itself: the beginning of a test's name, and the reason. Each must fail.
DIFFERENCES: Mapping[str, Mapping[str, str]] = {
    "haproxy": {},
    "envoy": {},
    "smg": {
        **_BOTH,
        **{
            f"{_UNSUPPORTED}classify.{field}]": "drops fields that it does not know"
            for field in NEUTRAL_IN_CLASSIFICATION
        },
        **{
            f"{_UNSUPPORTED}moderations.{field}]": "has no /v1/moderations"
            for field in NEUTRAL_IN_CLASSIFICATION
        },
        **_NO_CONVERSATIONS,
        _NO_TOOLS: _OWN_VALIDATION,
        f"{_TOOL_CHOICE}[required]": _OWN_VALIDATION,
        f"{_TOOL_CHOICE}[choice1]": _OWN_VALIDATION,
        f"{_FIELDS}test_function_call_without_functions_is_refused": _OWN_VALIDATION,
        f"{_FIELDS}test_deleting_a_model_is_refused": "writes `allow` without spaces",
        f"{_IMAGES}test_images_and_texts_reach_the_engine_in_order": _NO_TOKENS,
        f"{_IMAGES}test_tokens_have_one_placeholder_for_each_image": _NO_TOKENS,
        f"{_IMAGES}test_uuid_stands_for_the_image_that_was_sent_with_it": "drops fields of images",
        f"{_IMAGES}test_models_state_capability_and_limits": _ONE_MODEL,
    },
    "vllm-router": {
        **_BOTH,
        **_NO_CONVERSATIONS,
        _NO_TOOLS: _OWN_VALIDATION,
        f"{_TOOL_CHOICE}[choice2]": _OWN_VALIDATION,
        f"{_TOOL_CHOICE}[choice3]": _OWN_VALIDATION,
        f"{_NO_CHOICE}[fields2]": "refuses a null and an empty list of tools",
        f"{_NO_CHOICE}[fields3]": "refuses a null and an empty list of tools",
        # With engines
        **{
            f"{_SPEECH}test_{test}": _NO_FILES
            for test in (
                *("digits_", "segments_have_the_times_of_the_speech"),
                *("long_audio_is_cut_at_pauses", "subtitles_are_in_srt_and_webvtt"),
                *("log_probabilities_are_those_of_the_text", "prompt_and_its_special_tokens"),
            )
        },
        "tests/api/test_embeddings.py::test_truncation": "drops fields of embeddings that it does "
        "not know",
        "tests/api/test_embeddings.py::test_cross_encoder_scores": "has another shape of rerank",
        f"{_METRICS}test_running_stream_is_visible": _OWN_METRICS,
        f"{_METRICS}test_time_to_first_token_without_streaming": _OWN_METRICS,
        f"{_METRICS}test_requests_are_counted": _OWN_METRICS,
        f"{_METRICS}test_unknown_model_name_is_not_a_label": _OWN_METRICS,
        "tests/api/test_openai_sdk.py::test_bad_request_names_the_field[change3": _OWN_VALIDATION,
        "tests/api/test_request_fields.py::test_empty_prompt_begins_a_document[None]": (
            _OWN_VALIDATION
        ),
    },
}
# Tests of random requests, and of all endpoints: whether they fail depends on what they ask.
# And tests of a gateway with several models, or of APIs that these routers do not know or check
# by other schemas.
_NOT_THROUGH_MODEL_ROUTERS = (
    "tests/api/test_properties.py",
    "tests/api/test_schemathesis.py",
    "tests/api/conformance/test_decision_fields.py",
    "tests/api/conformance/test_messages_fields.py",
    "tests/api/conformance/test_responses_fields.py",
)
_SKIPPED: Mapping[str, tuple[str, ...]] = {
    "smg": (
        "tests/api/conformance/test_classify_fields.py",
        "tests/api/conformance/test_moderation_fields.py",
        *_NOT_THROUGH_MODEL_ROUTERS,
    ),
    "vllm-router": _NOT_THROUGH_MODEL_ROUTERS,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--through", choices=list(DIFFERENCES), metavar="ROUTER")


def pytest_configure(config: pytest.Config) -> None:
    if name := config.getoption("through"):
        config.pluginmanager.register(Through(name), "through")


class Through:
    """Starts the routers, and ends them with the run."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._running = ExitStack()
        self._patch = pytest.MonkeyPatch()
        self._folder = Path(mkdtemp(prefix="through-"))

    def pytest_sessionstart(self) -> None:
        from tests.gateway_process import GatewayProcess

        ready = GatewayProcess.wait_until_ready

        def wait_until_ready(process: "GatewayProcess", *arguments: Any) -> None:
            ready(process, *arguments)
            process.url = self._router(process.port).url

        self._patch.setattr(GatewayProcess, "wait_until_ready", wait_until_ready)

    def pytest_sessionfinish(self) -> None:
        self._patch.undo()
        self._running.close()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: Sequence[pytest.Item]) -> None:
        files = {item.nodeid.partition("::")[0] for item in items}
        for test, reason in DIFFERENCES[self._name].items():
            found = [item for item in items if item.nodeid.startswith(test)]
            if not found and test.partition("::")[0] in files:
                raise pytest.UsageError(f"--through {self._name}: no test is named {test}")
            for item in found:
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
        for item in items:
            if item.nodeid.startswith(_SKIPPED.get(self._name, ())):
                item.add_marker(pytest.mark.skip(reason="the router answers some by itself"))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Answers of the router itself need not be in order, which a fixture asserts."""
        from tests.api.conformance import wire

        if item.get_closest_marker("xfail"):
            wire.VIOLATIONS.clear()

    def _router(self, port: int) -> "Router":
        from tests.scale import routers

        folder = self._folder / str(port)
        folder.mkdir()
        shipped = routers.STARTS.get(self._name)  # its configuration has three gateways
        start = shipped or routers.MODEL_STARTS[self._name]
        ports = [port] * (3 if shipped else 1)
        return self._running.enter_context(routers.running(start, folder, ports))
