"""Each role's content and the ids of calls have the form that the template takes."""

import re
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_frontend.errors import InvalidRequest
from openai_frontend.prompting.call_ids import with_short_ids
from openai_frontend.prompting.chat_template import ChatTemplate

ROLES = ("system", "developer", "user", "assistant", "tool")
# Forms in which a template takes a content
FORMS = {
    "text": "{{ m.content }}",
    "parts": "{% for p in m.content %}{{ p.text }}{% endfor %}",
    "first part": "{{ m.content[0].text }}",
    "checked parts": (
        "{% if m.content is string %}{{ raise_exception('no') }}{% endif %}"
        "{% for p in m.content %}{{ p['text'] }}{% endfor %}"
    ),
    "either": (
        "{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}"
    ),
    "filter": "{{ m.content | trim }}",
}
MEDIA = (
    "{% for p in m.content %}{% if p.type == 'image' %}<img>{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}"
)


def template(forms: dict[str, str], call: str = "") -> ChatTemplate:
    """A template with a form for each role; `call` writes a call as `c`, and a result as `m`."""
    branches = "".join(
        f"{{% if m.role == '{role}' %}}[{role}:{form}]{{% endif %}}" for role, form in forms.items()
    )
    calls = f"{{% for c in m.tool_calls or [] %}}{call}{{% endfor %}}"
    return ChatTemplate("{% for m in messages %}" + branches + calls + "{% endfor %}", {})


def conversation(**contents: Any) -> list[dict[str, Any]]:
    function = {"name": "f", "arguments": "{}"}
    call = {"id": "call_1", "type": "function", "function": function}
    fields: dict[str, dict[str, Any]] = {
        "assistant": {"tool_calls": [call]},
        "tool": {"tool_call_id": "call_1"},
    }
    return [
        {"role": role, "content": content, **fields.get(role, {})}
        for role, content in contents.items()
    ]


STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('no') }}{% endif %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
)
SCATTERED: list[dict[str, Any]] = [
    {"role": "user", "content": "a"},
    {"role": "system", "content": "x"},
    {"role": "user", "content": "b"},
    {"role": "system", "content": [{"type": "text", "text": "y"}]},
]


def test_system_messages_move_to_the_beginning_if_asked() -> None:
    """Their texts are joined. Otherwise the template refuses them."""
    strict = ChatTemplate(STRICT, {})

    assert strict.render(SCATTERED, lift_system=True) == "[system:x\ny][user:a][user:b]"
    with pytest.raises(InvalidRequest):
        strict.render(SCATTERED)


def test_system_messages_stay_if_the_template_takes_them_anywhere() -> None:
    free = ChatTemplate("{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}", {})

    assert free.render(SCATTERED, lift_system=True) == "[user:a][system:x][user:b][system:y]"


@pytest.mark.parametrize(("one", "other"), list(product(FORMS, ("text", "parts"))))
def test_each_role_gets_its_form(one: str, other: str) -> None:
    """Texts and lists of parts come out the same, whatever the other roles take."""
    for at, role in enumerate(ROLES):
        forms = dict.fromkeys(ROLES, FORMS[other]) | {role: FORMS[one]}
        chat = template(forms)
        texts = {each: f"text of {each}" for each in ROLES}
        parts = {each: [{"type": "text", "text": text}] for each, text in texts.items()}
        expected = "".join(f"[{each}:{text}]" for each, text in texts.items())

        assert chat.render(conversation(**texts)) == expected, (at, role)
        assert chat.render(conversation(**parts)) == expected, (at, role)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("content", [None, "", []])
def test_a_call_without_content_is_empty(form: str, content: Any) -> None:
    """Neither None nor a list shows in the prompt, and the template does not fail."""
    chat = template(dict.fromkeys(ROLES, FORMS[form]))

    text = chat.render(conversation(user="a", assistant=content, tool="b"))

    assert text == "[user:a][assistant:][tool:b]"


@pytest.mark.parametrize("form", ["text", "first part", "parts", "either"])
def test_several_parts_are_all_written(form: str) -> None:
    """A refusal is text as well."""
    chat = template(dict.fromkeys(ROLES, FORMS[form]))
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]

    text = chat.render(conversation(user="q", assistant=parts, tool=parts[:1] * 2))

    assert re.fullmatch(r"\[user:q\]\[assistant:a\n?b\]\[tool:a\n?a\]", text)


@pytest.mark.parametrize("form", [*FORMS.values(), MEDIA])
def test_images_in_every_role(form: str) -> None:
    """A role whose template writes no images gets the placeholder of user messages as text."""
    chat = template({role: form for role in ROLES if role != "user"} | {"user": MEDIA})
    parts = [{"type": "text", "text": "see"}, {"type": "image"}]

    text = chat.render(conversation(user=parts, assistant="", tool=parts))

    assert text.count("<img>") == 2
    assert text.count("see") == 2
    assert "type" not in text


# What templates do to ids -> what they write of a call's id
CHECKS = {
    "length": (
        "{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}({{ c.id }})",
        "{% if m.tool_call_id | length != 9 %}{{ raise_exception('nine') }}{% endif %}",
    ),
    "only of results": (
        "({{ c.id }})",
        "{% if m.tool_call_id | length != 9 %}{{ raise_exception('nine') }}{% endif %}",
    ),
    "the last nine": ("({{ c.id[-9:] }})", "{{ m.tool_call_id[-9:] }}"),
    "with tools only": (
        "{% if tools and c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}({{ c.id }})",
        "",
    ),
}


@pytest.mark.parametrize(("call", "result"), CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("form", ["text", "parts"])
def test_templates_that_check_ids_get_nine_characters(call: str, result: str, form: str) -> None:
    """The call and its result have the same id; ids that fit are as they came."""
    forms = dict.fromkeys(ROLES, FORMS[form]) | {"tool": result + "{{ m.tool_call_id }}"}
    chat = template(forms, call)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    for id in ("call_0123456789abcdef01234567", "turn1_0", "a", "chatcmpl-tool-1", "ü" * 9):
        messages = conversation(user="q", assistant=None, tool="r")
        messages[1]["tool_calls"][0]["id"] = messages[2]["tool_call_id"] = id
        text = chat.render(messages, tools=tools)

        [written] = re.findall(r"\(([0-9A-Za-z]{9})\)", text)
        assert text.count(written) >= 2
        assert written != id[-9:]
    messages[1]["tool_calls"][0]["id"] = messages[2]["tool_call_id"] = "Abc123xyz"
    assert "(Abc123xyz)" in chat.render(messages, tools=tools)


@pytest.mark.parametrize("call", ["({{ c.id }})", "({{ c.function.name }})"])
def test_other_templates_get_ids_as_they_are(call: str) -> None:
    """Neither a template that writes any id nor one that writes none changes them."""
    chat = template(dict.fromkeys(ROLES, FORMS["text"]), call)

    text = chat.render(conversation(user="q", assistant=None, tool="r"))

    assert text in ("[user:q][assistant:](call_1)[tool:r]", "[user:q][assistant:](f)[tool:r]")


def test_a_template_that_refuses_tools_still_loads() -> None:
    """It then refuses the messages of a request that has some."""
    chat = template(
        dict.fromkeys(ROLES, FORMS["text"]) | {"tool": "{{ raise_exception('no tools') }}"}
    )

    assert chat.render(conversation(user="q")) == "[user:q]"
    with pytest.raises(InvalidRequest, match="no tools"):
        chat.render(conversation(user="q", assistant=None, tool="r"))


@given(st.lists(st.text(max_size=12) | st.from_regex(r"[0-9A-Za-z]{9}", fullmatch=True)))
def test_ids_stay_distinct(ids: list[str]) -> None:
    """Each has nine letters and digits, in a conversation and in its continuation."""
    messages = [{"role": "tool", "tool_call_id": id, "content": ""} for id in ids]

    short = [each["tool_call_id"] for each in with_short_ids(messages)]

    assert all(re.fullmatch("[0-9A-Za-z]{9}", id) for id in short)
    assert len(set(short)) == len(set(ids))
    assert short[: len(ids) // 2] == [
        each["tool_call_id"] for each in with_short_ids(messages[: len(ids) // 2])
    ]
