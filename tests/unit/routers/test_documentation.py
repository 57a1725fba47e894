"""What /docs shows, runs: every example of /openapi.json, against the gateway that serves it."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from openai_frontend.routers.examples import EXAMPLES
from tests.gateway_process import GatewayProcess
from tests.unit.routers.mock_gateway import mock_gateway


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with mock_gateway(tmp_path_factory.mktemp("documentation")) as process:
        yield process


@pytest.fixture(scope="module")
def document(gateway: GatewayProcess) -> dict[str, Any]:
    document: dict[str, Any] = httpx.get(f"{gateway.url}/openapi.json").json()
    return document


# Those that need a model of plain tensors, or leave to change models: tests/unit/kserve,
# tests/unit/models.
NOT_HERE = {
    "/v1/load_lora_adapter",
    "/v1/models/{id}/load",
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
def test_example_runs(gateway, document, path, name):
    """The example is answered as it stands in the document."""
    operation = document["paths"][path]["post"]
    body = operation["requestBody"]["content"]["application/json"]
    example = body["examples"][name]["value"]
    for parameter in operation.get("parameters", ()):
        path = path.replace(f"{{{parameter['name']}}}", parameter["example"])

    response = httpx.post(f"{gateway.url}{path}", json=example)

    assert response.status_code == 200, response.text
    assert bool(example.get("stream")) == response.text.endswith("data: [DONE]\n\n")


# Of each address the first example; KServe's have the model in their paths.
WITHOUT_MODEL = [(path, name) for path, name in NAMED if name == next(iter(EXAMPLES[path]))]


@pytest.mark.honours("chat.model", "completions.model", "embeddings.model")
@pytest.mark.parametrize(
    ("path", "name"), [each for each in WITHOUT_MODEL if not EXAMPLES[each[0]][each[1]].in_path]
)
def test_model_is_optional(gateway, document, path, name):
    """A request without a model uses the only one there is, at every address."""
    operation = document["paths"][path]["post"]
    example = operation["requestBody"]["content"]["application/json"]["examples"][name]["value"]
    del example["model"]

    response = httpx.post(f"{gateway.url}{path}", json=example)

    assert response.status_code == 200, response.text


def test_addresses_run(gateway, document):
    """Every address that takes no body answers, with the document's examples in its path."""
    failed = []
    for path, methods in document["paths"].items():
        if "get" not in methods:
            continue
        for parameter in methods["get"].get("parameters", ()):
            path = path.replace(f"{{{parameter['name']}}}", parameter["example"])
        if httpx.get(f"{gateway.url}{path}").status_code != 200:
            failed.append(path)
    assert failed == []


def test_page_is_complete(gateway):
    """The page asks for this server's own files only, and each of them is there."""
    page = httpx.get(f"{gateway.url}/docs")

    files = re.findall(r'(?:href|src)="([^"]+)"', page.text)
    assert len(files) == 3
    for file in files:
        assert re.fullmatch(r"docs/[\w.-]+", file)
        assert httpx.get(f"{gateway.url}/{file}").status_code == 200


def test_page_loads_nothing_from_elsewhere(gateway):
    """The browser is told to load and ask nothing but this server."""
    policy = httpx.get(f"{gateway.url}/docs").headers["content-security-policy"]

    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "connect-src 'self'" in policy


def test_scripts_are_scripts(gateway):
    """Each file has the type without which a browser does not run it."""
    types = {
        name: httpx.get(f"{gateway.url}/docs/{name}").headers["content-type"]
        for name in ("start.js", "swagger-ui-bundle.js", "swagger-ui.css")
    }

    assert [each.partition(";")[0] for each in types.values()] == [
        "text/javascript",
        "text/javascript",
        "text/css",
    ]


def test_files_have_no_ranges(gateway):
    """Fixed bytes, whole: a part of them cannot be asked for."""
    headers = {"range": "bytes=0-9"}

    response = httpx.get(f"{gateway.url}/docs/swagger-ui.css", headers=headers)

    assert response.status_code == 200
    assert "accept-ranges" not in response.headers


@pytest.mark.parametrize(
    "path", ["/docs/app.py", "/docs/../app.py", "/docs/%2e%2e/app.py", "/redoc"]
)
def test_nothing_else_is_served(gateway, path):
    """There is no folder behind the page."""
    assert httpx.get(f"{gateway.url}{path}").status_code == 404
