"""Every example in /openapi.json and every file of /docs works on the gateway that serves it."""

import re
from typing import Any

import httpx
import pytest

from openai_frontend.routers.examples import EXAMPLES
from tests.gateway_process import GatewayProcess


@pytest.fixture(scope="module")
def document(mock_gateway: GatewayProcess) -> dict[str, Any]:
    document: dict[str, Any] = httpx.get(f"{mock_gateway.url}/openapi.json").json()
    return document


# These need a model of plain tensors, one that speaks, classifies or
# moderates, or permission to change
# models: see tests/api/kserve, tests/api/backends, tests/api/models.
NOT_HERE = {
    "/embed_sparse",
    "/pooling",
    "/v1/pooling",
    "/classify",
    "/v1/classify",
    "/v1/moderations",
    "/v1/audio/speech",
    "/v1/load_lora_adapter",
    "/v1/models/{id}/load",
    "/v1/models/{id}/sleep",
    "/v1/models/{id}/wake",
    "/v1/models/{id}/unload",
    "/v1/unload_lora_adapter",
    "/v2/models/{model}/infer",
    "/v2/repository/models/{model}/load",
    "/v2/repository/models/{model}/unload",
}
NAMED = [
    (path, name) for path, examples in EXAMPLES.items() for name in examples if path not in NOT_HERE
]


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_every_example_runs(mock_gateway, document, path, name):
    operation = document["paths"][path]["post"]
    body = operation["requestBody"]["content"]["application/json"]
    example = body["examples"][name]["value"]
    for parameter in operation.get("parameters", ()):
        path = path.replace(f"{{{parameter['name']}}}", parameter["example"])

    response = httpx.post(f"{mock_gateway.url}{path}", json=example)

    assert response.status_code == 200, response.text
    ends = ("data: [DONE]\n\n", 'data: {"type":"message_stop"}\n\n')  # the last is Anthropic's
    assert bool(example.get("stream")) == response.text.endswith(ends)


# The first example of each path. KServe's paths contain the model.
WITHOUT_MODEL = [(path, name) for path, name in NAMED if name == next(iter(EXAMPLES[path]))]


@pytest.mark.honours("chat.model", "completions.model", "embeddings.model")
@pytest.mark.parametrize(
    ("path", "name"), [each for each in WITHOUT_MODEL if not EXAMPLES[each[0]][each[1]].in_path]
)
def test_every_endpoint_uses_the_only_model_by_default(mock_gateway, document, path, name):
    operation = document["paths"][path]["post"]
    example = operation["requestBody"]["content"]["application/json"]["examples"][name]["value"]
    del example["model"]

    response = httpx.post(f"{mock_gateway.url}{path}", json=example)

    assert response.status_code == 200, response.text


def test_every_get_endpoint_answers(mock_gateway, document):
    """With the document's examples in its path."""
    failed = []
    for path, methods in document["paths"].items():
        if "get" not in methods:
            continue
        for parameter in methods["get"].get("parameters", ()):
            path = path.replace(f"{{{parameter['name']}}}", parameter["example"])
        if httpx.get(f"{mock_gateway.url}{path}").status_code != 200:
            failed.append(path)
    assert failed == []


def test_docs_page_loads_only_files_of_this_server(mock_gateway):
    """Every file exists."""
    page = httpx.get(f"{mock_gateway.url}/docs")

    files = re.findall(r'(?:href|src)="([^"]+)"', page.text)
    assert len(files) == 3
    for file in files:
        assert re.fullmatch(r"docs/[\w.-]+", file)
        assert httpx.get(f"{mock_gateway.url}/{file}").status_code == 200


def test_content_security_policy_allows_only_this_server(mock_gateway):
    """The browser may load files from this server only and connect to it only."""
    policy = httpx.get(f"{mock_gateway.url}/docs").headers["content-security-policy"]

    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "connect-src 'self'" in policy


def test_docs_files_have_their_content_types(mock_gateway):
    """Browsers run no script that has another type."""
    types = {
        name: httpx.get(f"{mock_gateway.url}/docs/{name}").headers["content-type"]
        for name in ("start.js", "swagger-ui-bundle.js", "swagger-ui.css")
    }

    assert [each.partition(";")[0] for each in types.values()] == [
        "text/javascript",
        "text/javascript",
        "text/css",
    ]


def test_docs_follow_the_colours_of_the_system(mock_gateway):
    """The class that the page sets is the one of Swagger UI's dark colours."""
    start, css = [
        httpx.get(f"{mock_gateway.url}/docs/{name}").text for name in ("start.js", "swagger-ui.css")
    ]

    assert 'classList.toggle("dark-mode", dark.matches)' in start
    assert "html.dark-mode .swagger-ui{background:" in css


def test_docs_files_ignore_range_requests(mock_gateway):
    """The response is always the whole file."""
    headers = {"range": "bytes=0-9"}

    response = httpx.get(f"{mock_gateway.url}/docs/swagger-ui.css", headers=headers)

    assert response.status_code == 200
    assert "accept-ranges" not in response.headers


@pytest.mark.parametrize(
    "path", ["/docs/app.py", "/docs/../app.py", "/docs/%2e%2e/app.py", "/redoc"]
)
def test_other_paths_below_docs_are_404(mock_gateway, path):
    """No folder is served."""
    assert httpx.get(f"{mock_gateway.url}{path}").status_code == 404
