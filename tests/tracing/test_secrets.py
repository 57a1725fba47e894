"""No prompt, no answer and no key is in any log or span, whatever is asked and whatever fails."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.routers.mock_gateway import request
from tests.tracing.conftest import ANSWER, KEY, World

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
# Each is wrong in its own way, and quotes the prompt where it can
SPOILT: tuple[dict[str, Any], ...] = (
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
    """Every route, with every model, whole and streamed, right and wrong; the statuses."""
    statuses = set()
    for path, body in BODIES.items():
        for model in ("demo", "telling", "breaks", "broken"):
            for more in ({"max_tokens": 2}, {"max_tokens": 4, "stream": True}):
                asked = {"model": model, **body, **more}
                statuses.add(world.client.post(path, json=asked).status_code)
        for spoilt in SPOILT:
            asked = {"model": "demo", **body, **spoilt}
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
    """Keys where they belong and where they do not."""
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


def test_canaries(world: World) -> None:
    """All routes, failing ones too, at the level debug: no canary in the log, in standard output,
    in a span or in a metric.
    """
    assert ask_all(world) >= {200, 400, 404, 500, 503}
    assert ask_with_keys(world) >= {200, 401}
    last = world.client.get("/v1/models", headers={"x-request-id": "the-last"})
    world.lines_of("the-last")
    world.collector.of_request("the-last")
    metrics = world.client.get("/metrics").text

    told = world.process.output()
    assert last.status_code == 200
    assert "telling" in told and "RuntimeError" in told and "Traceback" in told  # noqa: PT018  it tells of failures
    spans = b"".join(world.collector.bodies)
    for canary in CANARIES:
        where = [line for line in told.splitlines() if canary in line]
        assert where == []
        assert canary.encode() not in spans
        assert canary not in metrics


def test_access_log(world: World) -> None:
    """The line of a request has its ids, what it used and who asked; streams' bytes too."""
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


def test_line_of_a_failure(world: World) -> None:
    """The failure's line and the access log's have the ids of the request, and of its answer."""
    body = {"model": "telling", **CHAT}
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


def test_tritons_lines(world: World) -> None:
    """What Triton's core logs is in the same form."""
    lines = [line for line in world.lines() if line["logger"] == "triton"]

    assert any("broken" in line["message"] and line["level"] == "error" for line in lines)


FORGED = '\r\n{"level":"error","logger":"forged"}\r\n\x1b[2Kforged'


def test_forged_lines(world: World) -> None:
    """Nothing that a request says begins a line of its own, or commands a terminal."""
    world.client.post("/v1/completions", json={"model": FORGED, "prompt": FORGED, FORGED: 1})
    world.client.post(f"/v2/models/demo{'%0d%0aforged'}/generate", json={"id": FORGED})
    world.client.post("/v2/models/demo/generate", json={"id": FORGED, "text_input": FORGED})
    for head in ("GET /\x1b[2Kforged", "GET /x%0a%1b"):
        with socket.create_connection(("127.0.0.1", world.process.port), timeout=10) as sent:
            sent.sendall(request(head, "x-request-id: \x1b[2Kforged", "host: \x1b[2K"))
            sent.recv(65536)
    world.client.get("/v1/models", headers={"x-request-id": "after-forging"})
    world.lines_of("after-forging")

    lines = world.process.output().splitlines()
    told = [json.loads(line) for line in lines if line.startswith("{")]
    assert "forged" not in {line.get("logger") for line in told}
    assert [line for line in lines if "\x1b" in line or line.startswith("forged")] == []


def test_nothing_is_imported() -> None:
    """Without a collector nobody imports OpenTelemetry."""
    code = (
        "import sys, openai_frontend.cli.serve as s;"
        "from openai_frontend.config.settings import Settings;"
        "from openai_frontend.app import create_app; from openai_frontend.triton import Server;"
        "create_app(Settings(), Server(s.triton_options(Settings())));"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout == "[]\n"


def test_missing_extra(tmp_path: Path) -> None:
    """Where the extra is not installed the setting is refused, with the extra's name."""
    code = (
        "import sys; sys.modules['opentelemetry'] = None; from openai_frontend.cli import main;"
        "sys.exit(main(['serve', '--otlp-endpoint=http://127.0.0.1:9', '--model-repository=.']))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)

    assert ran.returncode == 2
    assert "otlp_endpoint: install the extra 'otel'" in ran.stderr
