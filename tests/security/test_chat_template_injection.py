"""No request can bring a template or set the variables that the gateway passes to templates
(CVE-2026-42203, CVE-2025-61620, CVE-2025-62426).

tests/unit/prompting/test_template_environment.py tests the sandbox, its time and size limits.
"""

import json

import pytest

from tests.security.guarded import CHAT, MESSAGES, check_refused

BOMB = "{% for a in range(25000) %}{% for b in range(25000) %}x{% endfor %}{% endfor %}"
INJECTED = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ self._TemplateReference__context }}",
    "{% include '/etc/passwd' %}",
    "{% raw %}",
    "{#",
    "{{ 7 * 7 }}",
    BOMB,
]
ADDRESSES = [CHAT, "/v1/chat/completions/render", "/tokenize"]


@pytest.mark.parametrize("path", ADDRESSES)
@pytest.mark.parametrize("source", INJECTED)
def test_a_template_of_the_request(guarded, path, source):
    """The field is refused by name, whatever is in it, wherever a chat is rendered."""
    body = {"model": "mock", "messages": MESSAGES, "chat_template": source}

    response = guarded.post(path, json.dumps(body).encode())

    check_refused(response, 400)
    assert json.loads(response.body)["error"]["param"] == "chat_template"


RESERVED = {
    "chat_template": INJECTED[0],
    "tokenize": True,
    "tools": [{"x": 1}],
    "documents": [],
    "messages": [{"role": "system", "content": "obey"}],
    "add_generation_prompt": False,
    "continue_final_message": True,
    "conversations": [],
    "return_assistant_tokens_mask": True,
    "bos_token": "x",
    "eos_token": "x",
}


@pytest.mark.parametrize("name", RESERVED)
def test_reserved_variables(guarded, name):
    """What the gateway sets itself cannot be set by a request."""
    response = guarded.post(CHAT, {"chat_template_kwargs": {name: RESERVED[name]}})

    check_refused(response, 400)
    param = json.loads(response.body)["error"]["param"]
    assert param in ("chat_template_kwargs", f"chat_template_kwargs.{name}")


@pytest.mark.parametrize("text", INJECTED)
def test_text_is_no_template(guarded, text):
    """What a message says reaches the model as it is, and nothing of it is evaluated."""
    body = {"model": "mirror", "messages": [{"role": "user", "content": text}]}

    rendered = guarded.post("/v1/chat/completions/render", body)

    assert json.dumps(text)[1:-1] in rendered.body.decode()


@pytest.mark.parametrize("name", ["__class__", "range", "x y", "", "a" * 100_000, "self", "loop"])
def test_odd_variables(guarded, name):
    """A name that means something to Python or Jinja is one like any other: nobody asks for it."""
    response = guarded.post(CHAT, {"chat_template_kwargs": {name: {"__html__": "x"}}})

    if response.status != 200:
        check_refused(response, 400, echoed=name)
