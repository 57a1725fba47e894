"""No request can supply a template or set the variables that the gateway passes to templates
(CVE-2026-42203, CVE-2025-61620, CVE-2025-62426).

tests/medium/prompting/test_template_environment.py tests the sandbox and its limits on time and
size.
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
def test_a_request_with_a_template_gets_400(guarded, path, source):
    """The error names the field `chat_template`, on every endpoint that renders a chat."""
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
def test_reserved_template_variables_get_400(guarded, name):
    """A request cannot set the variables that the gateway sets."""
    response = guarded.post(CHAT, {"chat_template_kwargs": {name: RESERVED[name]}})

    check_refused(response, 400)
    param = json.loads(response.body)["error"]["param"]
    assert param in ("chat_template_kwargs", f"chat_template_kwargs.{name}")


@pytest.mark.parametrize("text", INJECTED)
def test_message_text_is_not_evaluated_as_a_template(guarded, text):
    """The text of a message reaches the model unchanged."""
    body = {"model": "mirror", "messages": [{"role": "user", "content": text}]}

    rendered = guarded.post("/v1/chat/completions/render", body)

    assert json.dumps(text)[1:-1] in rendered.body.decode()


@pytest.mark.parametrize("name", ["__class__", "range", "x y", "", "a" * 100_000, "self", "loop"])
def test_variable_names_of_python_or_jinja_have_no_effect(guarded, name):
    """A name that is special to Python or Jinja is an ordinary variable that no template uses."""
    response = guarded.post(CHAT, {"chat_template_kwargs": {name: {"__html__": "x"}}})

    if response.status != 200:
        check_refused(response, 400, echoed=name)
