"""A model name is looked up in the list of models and never becomes a path (CVE-2026-24208,
CVE-2026-24209). Code that a model's files name does not run (CVE-2026-22807, CVE-2025-66448).
"""

import json
from urllib.parse import quote

import pytest

from tests.security.guarded import CHAT, COMPLETIONS, EMBEDDINGS, check_refused

NAMES = [
    "../../etc/passwd",
    "..",
    ".",
    "/etc/passwd",
    "mock/../slow",
    "mock/1/model.json",
    "./mock",
    "mock\0",
    "\0",
    "..%2f..%2fetc%2fpasswd",
    "\u2025/\u2025/etc",
    "\uff0e\uff0e/mock",
    "mock\n2026-01-01 ERROR forged",
    "mock\x1b[31m",
    "~/mock",
    "mock:../../x",
    "mock@../1",
    "mock@99999999999999999999",
    "file:///etc/passwd",
    "x" * 10_000,
    "C:\\windows",
    "${HOME}",
    "{0.__class__}",
    "%s%n",
    "",
    " mock",
    "MOCK",
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_an_unknown_model_in_a_body_gets_404(guarded, name):
    """OpenAI's error, which quotes only as much of the name as fits in a log line."""
    logged = len(guarded.log())
    for path in (CHAT, COMPLETIONS, EMBEDDINGS, "/v1/rerank", "/v1/score", "/tokenize"):
        response = guarded.post(path, {"model": name})

        check_refused(response, 400, 404, echoed=name[:256])
        error = json.loads(response.body)["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model") or not name
        assert len(error["message"]) < 500
    said = guarded.log()[logged:]
    assert "ERROR forged" not in said
    assert "\x1b" not in said


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_an_unknown_model_in_a_path_gets_an_error(guarded, name):
    """On every endpoint with a model name in its path."""
    part = quote(name[:5000], safe="")
    for line in (
        f"GET /v1/models/{part}",
        f"POST /v1/models/{part}/load",
        f"POST /v1/models/{part}/unload",
        f"GET /v2/models/{part}",
        f"GET /v2/models/{part}/config",
        f"GET /v2/models/{part}/versions/{part}/ready",
        f"POST /v2/models/{part}/generate",
        f"POST /v2/models/{part}/infer",
        f"POST /v2/repository/models/{part}/load",
        f"POST /v2/repository/models/{part}/unload",
    ):
        response = guarded.ask(line, b"{}" if line.startswith("POST") else b"")
        if not name or name == ".":  # the path of the model list, or no route
            assert response.status in (200, 400, 404, 405), (line, response)
        else:
            check_refused(response, 400, 404, 405, 409, 414, echoed=name[:256])


ADAPTERS = ["../x", "/etc", "a/../../b", "\0", "x" * 1000, "a b", ".", ".."]


@pytest.mark.parametrize("name", ADAPTERS, ids=range(len(ADAPTERS)))
def test_an_adapter_name_never_becomes_a_path(guarded, name):
    """No request can set the folder of an adapter either."""
    for fields in (
        {"lora_name": name, "lora_path": "/etc"},
        {"lora_name": f"mock:{name}"},
        {"lora_name": name, "model": "mock"},
    ):
        response = guarded.post("/v1/load_lora_adapter", fields)
        check_refused(response, 400, 404, 409, echoed=name[:256])


@pytest.mark.parametrize("name", ["config", "file:1/model.json", "file:../../x"])
def test_a_load_request_with_files_or_a_config_is_refused(guarded, name):
    """Triton's load accepts a configuration and files; ours accepts neither."""
    fields = {"parameters": {name: "x" * 100}}

    response = guarded.post("/v2/repository/models/mock/load", fields)

    check_refused(response, 400, 403, 409, echoed=name)
    assert guarded.answers()
