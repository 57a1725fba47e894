"""Error messages equal the forms in docs/errors.md: clients read the numbers in them."""

from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "errors.md"
FORMS = {
    code.strip(" `"): message.strip(" `|")
    for line in PAGE.read_text(encoding="utf-8").partition("## Message forms")[2].splitlines()
    if line.startswith("| `")
    for _, code, message in [line.split("|", 2)]
}

REQUESTS: dict[str, dict[str, Any]] = {
    "integer_above_max_value": {"n": 130},
    "decimal_above_max_value": {"temperature": 3},
    "invalid_type": {"max_tokens": "16"},
    "array_above_max_length": {"stop": ["x"] * 17},
    "string_above_max_length": {"safety_identifier": "x" * 129},
    "empty_array": {"messages": []},
    "missing_required_parameter": {"messages": ...},
    "unsupported_parameter": {"audio": {"format": "wav", "voice": "alloy"}},
    "context_length_exceeded": {"max_tokens": 9},
}


def test_every_documented_form_has_a_request():
    assert set(FORMS) == set(REQUESTS)


@pytest.mark.parametrize("code", REQUESTS)
async def test_message_equals_its_documented_form(world, code):
    world.model(max_model_len=10)
    body = {
        "model": "fake",
        "messages": [{"role": "user", "content": "hi"}],
        **REQUESTS[code],
    }
    sent = {name: value for name, value in body.items() if value is not ...}

    response = await world.client.post("/v1/chat/completions", json=sent)

    error = response.json()["error"]
    assert (code, FORMS[code]) == (error["code"], error["message"])
    assert response.status_code == 400
