"""Messages in the form of OpenAI's clients, rendered by templates that expect other forms."""

import json
from pathlib import Path
from typing import Any

import pytest

import chat_templates
from openai_frontend.errors import InvalidRequest, ModelUnavailable
from openai_frontend.prompting.chat_template import ChatTemplate, read
from openai_frontend.serving.error_reply import reply_for
from tests.fast.prompting.tiny_tokenizer import CHATML

PLAIN = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
PARTS = (
    "{% for m in messages %}{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endfor %}"
)
KNOWS_DEVELOPER = "{# developer #}" + PLAIN
ARGUMENTS_AS_MAPPING = (
    "{% for m in messages %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}({{ c.function.arguments | tojson }}){% endfor %}{% endfor %}"
)
ARGUMENTS_AS_TEXT = (
    "{% for m in messages %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '(' + c.function.arguments + ')' }}{% endfor %}"
    "{% endfor %}"
)
ARGUMENTS_PRINTED = ARGUMENTS_AS_MAPPING.replace(" | tojson", "")
REFUSES = "{{ raise_exception('Only users may speak.') if messages[0].role != 'user' }}ok"
TEXT_PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def render(source: str, *messages: dict[str, Any], **options: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(list(messages), **options)


def called(arguments: Any, content: str | None = None) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    call = {"id": "1", "type": "function", "function": function}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


@pytest.mark.parametrize(
    ("source", "message", "text"),
    [
        (PLAIN, {"role": "user", "content": "a"}, "[user:a]"),
        (PLAIN, {"role": "user", "content": TEXT_PARTS}, "[user:a\nb]"),
        (
            PLAIN,
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            "[assistant:no]",
        ),
        (PLAIN, {"role": "developer", "content": "a"}, "[system:a]"),
        (KNOWS_DEVELOPER, {"role": "developer", "content": "a"}, "[developer:a]"),
        (PLAIN, {"role": "assistant", "content": None}, "[assistant:]"),
        (PARTS, {"role": "user", "content": "a"}, "[a]"),
        (PARTS, {"role": "user", "content": TEXT_PARTS}, "[a][b]"),
        (ARGUMENTS_AS_MAPPING, called('{"x": "ü"}'), '({"x": "ü"})'),
        (ARGUMENTS_AS_MAPPING, called(""), "({})"),
        (ARGUMENTS_AS_TEXT, called('{"x":1}'), '({"x":1})'),
        (ARGUMENTS_PRINTED, called('{"x":1}'), '({"x":1})'),
        ("{{ bos_token }}", {"role": "user", "content": "a"}, "<s>"),
    ],
)
def test_messages_are_adapted_to_the_template(
    source: str, message: dict[str, Any], text: str
) -> None:
    """Content, role and arguments are converted to the form that the template supports."""

    assert text == render(source, message)


def test_client_messages_are_not_modified() -> None:
    """Adapting creates new messages."""

    message = called('{"x": 1}')
    render(ARGUMENTS_AS_MAPPING, message)
    assert message == called('{"x": 1}')


@pytest.mark.parametrize(
    ("source", "message", "reason"),
    [
        (REFUSES, {"role": "system", "content": "a"}, "Only users may speak."),
        ("{{ messages[0].content.x.y }}", {"role": "user", "content": "a"}, "has no attribute"),
        ("{{ 'a' + 1 }}", {"role": "user", "content": "a"}, "can only concatenate str"),
        ("{{ '{}'.format() }}", {"role": "user", "content": "a"}, "out of range"),
        ("{{ 'x' | dictsort }}", {"role": "user", "content": "a"}, "no attribute 'items'"),
        ("{{ ''.__class__.__mro__ }}", {"role": "user", "content": "a"}, "unsafe"),
    ],
)
def test_template_error_is_an_invalid_request(
    source: str, message: dict[str, Any], reason: str
) -> None:
    """The error names `messages` and quotes the template's message."""

    with pytest.raises(InvalidRequest, match=reason) as refused:
        render(source, message)
    assert refused.value.param == "messages"


def test_unsupported_content_part_is_refused() -> None:
    """`param` is the path of the part."""

    image = {"type": "image_url", "image_url": {"url": "x"}}
    with pytest.raises(InvalidRequest, match="this model supports only text parts") as refused:
        render(PLAIN, {"role": "user", "content": [image]})
    assert refused.value.param == "messages[0].content[0]"


@pytest.mark.parametrize("content", [None, []])
@pytest.mark.parametrize("source", [PLAIN, PARTS])
def test_assistant_content_null_becomes_empty(source: str, content: Any) -> None:
    """Every template renders it as empty, and never as the word None."""

    text = render(source, {"role": "assistant", "content": content})
    assert text in ("[assistant:]", "")


SHAPES = [ARGUMENTS_AS_MAPPING, ARGUMENTS_AS_TEXT]
NOT_OBJECTS = ['{"location', "oops", "[]", "1", "[" * 100_000, "", None]


@pytest.mark.parametrize("source", SHAPES)
@pytest.mark.parametrize("arguments", NOT_OBJECTS, ids=lambda given: str(given)[:10])
def test_arguments_that_are_not_a_json_object(source: str, arguments: str | None) -> None:
    """The template gets an empty object, so that the conversation can continue."""

    assert render(source, called(arguments)) == "({})"


@pytest.mark.parametrize("source", SHAPES)
def test_arguments_as_a_parsed_object(source: str) -> None:
    """Some clients send them instead of a string."""

    assert json.loads(render(source, called({"x": 1}))[1:-1]) == {"x": 1}


def test_malformed_arguments_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The warning has the path, but not the arguments."""

    template = ChatTemplate(ARGUMENTS_AS_MAPPING, {})
    for _ in range(2):
        template.render([called("{oops")])

    assert [record.getMessage() for record in caplog.records] == [
        "messages[0].tool_calls[0].function.arguments is not a JSON object; the template "
        "gets {} (logged once per template)"
    ]


EFFORTS = "{% if effort not in ['low', none] %}{{ raise_exception('no') }}{% endif %}"


@pytest.mark.parametrize(("value", "accepted"), [("low", True), ("minimal", False)])
def test_template_that_raises_does_not_accept_the_value(value: str, accepted: bool) -> None:
    source = "{% set effort = effort | default(none) %}" + EFFORTS + PLAIN
    assert ChatTemplate(source, {}).accepts("effort", value) is accepted


def test_template_that_always_raises_accepts_every_value() -> None:
    """The failure says nothing about the value."""

    assert ChatTemplate("{{ raise_exception('no') }}{{ effort }}", {}).accepts("effort", "low")


def test_errors_hide_internal_objects() -> None:
    """An error whose message shows an internal object gets a general message."""
    source = "{{ raise_exception(namespace | string) }}"

    with pytest.raises(InvalidRequest, match="<class") as refused:
        render(source, {"role": "user", "content": "a"})
    assert reply_for(refused.value).message.startswith("The model refuses the request")


@pytest.mark.parametrize("name", ["messages", "tools", "chat_template", "bos_token"])
def test_reserved_variables_cannot_be_overridden(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'{name}'") as refused:
        render(PLAIN, template_kwargs={name: "x"})
    assert refused.value.param == "chat_template_kwargs"


def test_request_sets_template_variables() -> None:
    assert render("{{ thinking }}", template_kwargs={"thinking": False}) == "False"


def test_without_generation_prompt() -> None:
    """The text ends with the last message."""

    text = render(CHATML, {"role": "user", "content": "a"}, add_generation_prompt=False)
    assert text == "<|im_start|>user\na<|im_end|>\n"


def test_syntax_error_makes_the_model_unavailable() -> None:
    """The error has the line."""

    with pytest.raises(ModelUnavailable, match="line 2 of the chat template"):
        ChatTemplate("a\n{% if %}", {})


def test_template_by_name_or_path(tmp_path: Path) -> None:
    """Anything but a built-in name is a path."""

    path = tmp_path / "own.jinja"
    path.write_text("own", encoding="utf-8")
    assert [read("chatml"), read(str(path))] == [chat_templates.read("chatml"), "own"]


TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
CHATML_OFFER = """<|im_start|>system
Be brief.

You may call these functions:
<tools>
{"type": "function", "function": {"name": "f", "parameters": {}}}
</tools>
To call one, answer with its name and arguments as JSON:
<tool_call>
{"name": <name>, "arguments": <arguments>}
</tool_call><|im_end|>
<|im_start|>user
Go<|im_end|>
<|im_start|>assistant
On it
<tool_call>
{"name": "f", "arguments": {"x": "ü"}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
done
</tool_response><|im_end|>
<|im_start|>assistant
"""


def test_chatml_with_tools() -> None:
    """The built-in template renders a complete tool conversation in Hermes' format."""

    text = render(
        chat_templates.read("chatml"),
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Go"},
        called('{"x": "ü"}', "On it"),
        {"role": "tool", "tool_call_id": "1", "content": "done"},
        tools=[TOOL],
    )
    assert text == CHATML_OFFER


def test_chatml_without_tools() -> None:
    """Without a system message and tools, only the turns are rendered."""

    text = render(chat_templates.read("chatml"), {"role": "user", "content": "a"})
    assert text == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"


def test_unknown_template_name() -> None:
    """Names are only those of the files in the package."""

    with pytest.raises(KeyError):
        chat_templates.read("../chat_templates/chatml")
