"""No prompt, output or key appears in a log, span or metric, whatever fails."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.api.routers.mock_gateway import request
from tests.api.tracing.conftest import ANSWER, KEY, World

PROMPT = "canaryprompt sings"
OTHER_KEY = "sk-canary0other0key0canary0other0key"
CANARIES = ("canaryprompt", ANSWER, KEY, OTHER_KEY)

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": PROMPT},
    "/v1/embeddings": {"input": [PROMPT, PROMPT]},
    "/v1/rerank": {"query": PROMPT, "documents": [PROMPT]},
    "/v1/score": {"text_1": PROMPT, "text_2": PROMPT},
    "/tokenize": {"prompt": PROMPT},
    "/detokenize": {"tokens": [1, 2, 3]},
    "/v1/chat/completions/render": CHAT,
    "/v1/completions/render": {"prompt": PROMPT},
}
# Invalid in different ways, with the prompt wherever possible
INVALID: tuple[dict[str, Any], ...] = (
    {"temperature": PROMPT},
    {PROMPT: PROMPT},
    {"max_tokens": 1, "stop": [PROMPT] * 100},
    {"tools": [{"type": PROMPT}]},
    {"response_format": {"type": "json_schema", "json_schema": {"name": PROMPT, "schema": 1}}},
    {"model": PROMPT},
    {"logit_bias": {PROMPT: 1}},
    {"chat_template_kwargs": {"x": PROMPT}},
)


def ask_all(world: World) -> set[int]:
    """Requests to every route and model, streamed or not, valid or not. Returns the statuses."""
    statuses = set()
    for path, body in BODIES.items():
        for model in ("demo", "telling", "breaks", "broken"):
            for more in ({"max_tokens": 2}, {"max_tokens": 4, "stream": True}):
                asked = {"model": model, **body, **more}
                statuses.add(world.client.post(path, json=asked).status_code)
        for invalid in INVALID:
            asked = {"model": "demo", **body, **invalid}
            statuses.add(world.client.post(path, json=asked).status_code)
        statuses.add(world.client.post(path, content=f'{{"prompt": "{PROMPT}').status_code)
    kserve = {"text_input": PROMPT, "prompt": PROMPT, PROMPT: PROMPT}
    for model in ("demo", "telling", "breaks", PROMPT):
        for what in ("generate", "generate_stream", "infer"):
            answer = world.client.post(f"/v2/models/{model}/{what}", json=kserve)
            statuses.add(answer.status_code)
    for path in (f"/{PROMPT}", f"/v1/models/{PROMPT}", f"/v1/models?{PROMPT}={PROMPT}", "/metrics"):
        statuses.add(world.client.get(path).status_code)
    return statuses


def ask_with_keys(world: World) -> set[int]:
    """Requests with keys in the right and in wrong headers. Returns the statuses."""
    statuses = set()
    for headers in (
        {"authorization": f"Bearer {OTHER_KEY}"},
        {"authorization": OTHER_KEY},
        {"x-api-key": OTHER_KEY, "authorization": ""},
        {"x-request-id": OTHER_KEY[:3] + " " + OTHER_KEY},
        {"traceparent": OTHER_KEY, "tracestate": f"a={PROMPT}"},
        {"user-agent": OTHER_KEY, "cookie": PROMPT, "host": PROMPT},
    ):
        answer = world.client.post(
            "/v1/completions", json=BODIES["/v1/completions"], headers=headers
        )
        statuses.add(answer.status_code)
    query = world.client.get(f"/v1/models?api_key={OTHER_KEY}")
    return {*statuses, query.status_code}


@pytest.mark.slow
def test_no_canary_appears_anywhere(world: World) -> None:
    """Not in the log at level debug, in standard output, in a span or in a metric."""
    assert ask_all(world) >= {200, 400, 404, 500, 503}
    assert ask_with_keys(world) >= {200, 401}
    last = world.client.get("/v1/models", headers={"x-request-id": "the-last"})
    world.lines_of("the-last")
    world.collector.of_request("the-last")
    metrics = world.client.get("/metrics").text

    told = world.process.output()
    assert last.status_code == 200
    assert "telling" in told and "RuntimeError" in told and "Traceback" in told  # noqa: PT018  failures are logged
    spans = b"".join(world.collector.bodies)
    for canary in CANARIES:
        where = [line for line in told.splitlines() if canary in line]
        assert where == []
        assert canary.encode() not in spans
        assert canary not in metrics


def test_access_log_line(world: World) -> None:
    """It has the ids, the usage, the bytes of the stream, the client and the key's name."""
    body = {"model": "demo", **CHAT, "max_tokens": 40, "stream": True}
    with world.client.stream("POST", "/v1/chat/completions", json=body) as response:
        size = len(response.read())
    line = world.lines_of(response.headers["x-request-id"])[-1]

    line.pop("time")
    line.pop("message")
    assert line.pop("duration_ms") > 0
    assert len(line.pop("trace_id")) == 32
    assert len(line.pop("span_id")) == 16
    assert line.pop("response_id").startswith("chatcmpl-")
    assert line.pop("prompt_tokens") > 0
    assert line == {
        "level": "info",
        "logger": "openai_frontend.access_log",
        "request_id": response.headers["x-request-id"],
        "method": "POST",
        "route": "/v1/chat/completions",
        "status": 200,
        "bytes": size,
        "model": "demo",
        "completion_tokens": 40,
        "client": "127.0.0.1",
        "key": "tester",
    }


def test_failure_is_logged_with_its_ids(world: World) -> None:
    """The failure and the access log share the request id and the response id."""
    own = [{"role": "user", "content": "fail once"}]  # a repeated failure is logged as debug
    body = {"model": "telling", "messages": own}
    response = world.client.post("/v1/chat/completions", json=body)
    failure, access = world.lines_of(response.headers["x-request-id"])

    assert failure["logger"] == "openai_frontend.serving.error_reply"
    assert failure["level"] == "error"
    assert failure["response_id"] == access["response_id"]
    assert access["error"] == "inference_failed"
    told = [line for line in world.lines() if failure["response_id"] in line["message"]]
    [engine] = [line for line in told if "exception" in line]
    assert engine["exception"]["type"] == "RuntimeError"
    raising = 'raise RuntimeError(f"cannot go on after {prompt!r}")'
    assert raising in engine["exception"]["stack"]


def test_log_of_tritons_core(world: World) -> None:
    """Its lines have the same format."""
    lines = [line for line in world.lines() if line["logger"] == "triton"]

    assert any("broken" in line["message"] and line["level"] == "error" for line in lines)


FORGED = '\r\n{"level":"error","logger":"forged"}\r\n\x1b[2Kforged'


def test_log_lines_cannot_be_forged(world: World) -> None:
    """No part of a request starts a new line or controls a terminal."""
    world.client.post("/v1/completions", json={"model": FORGED, "prompt": FORGED, FORGED: 1})
    world.client.post(f"/v2/models/demo{'%0d%0aforged'}/generate", json={"id": FORGED})
    world.client.post("/v2/models/demo/generate", json={"id": FORGED, "text_input": FORGED})
    for head in ("GET /\x1b[2Kforged", "GET /x%0a%1b"):
        with socket.create_connection(("127.0.0.1", world.process.port), timeout=60) as sent:
            sent.sendall(request(head, "x-request-id: \x1b[2Kforged", "host: \x1b[2K"))
            sent.recv(65536)
    world.client.get("/v1/models", headers={"x-request-id": "after-forging"})
    world.lines_of("after-forging")

    lines = world.process.output().splitlines()
    told = [json.loads(line) for line in lines if line.startswith("{")]
    assert "forged" not in {line.get("logger") for line in told}
    assert [line for line in lines if "\x1b" in line or line.startswith("forged")] == []


def test_opentelemetry_is_not_imported_without_a_collector() -> None:
    """Its SDK and exporter cost start-up time and memory. FastAPI imports its API since 0.165."""
    code = (
        "import sys, openai_frontend.cli.serve as s;"
        "from openai_frontend.config.settings import Settings;"
        "from openai_frontend.app import create_app; from openai_frontend.triton import Server;"
        "create_app(Settings(), Server(s.triton_options(Settings())));"
        "print([name for name in ('opentelemetry.sdk', 'opentelemetry.exporter', 'requests')"
        " if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout == "[]\n"


def test_missing_extra_is_reported(tmp_path: Path) -> None:
    """The error names the extra to install."""
    code = (
        "import sys; sys.modules['opentelemetry'] = None; from openai_frontend.cli import main;"
        "sys.exit(main(['serve', '--otlp-endpoint=http://127.0.0.1:9', '--model-repository=.']))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)

    assert ran.returncode == 2
    assert "otlp_endpoint: install the extra 'otel'" in ran.stderr
