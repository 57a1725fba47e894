"""A text argument may contain the tags that end it."""

import json

import pytest

from openai_frontend.parsing.parser import FamilyParser
from openai_frontend.parsing.registry import BY_NAME
from tests.fast.parsing.samples import complete, replay

TOOLS = {
    "save": {
        "properties": {"doc": {"type": "string"}, "any": {}, "count": {"type": "integer"}},
    }
}

# Family -> a call with the values of two arguments, and the tag that ends a value
CALLS = {
    "qwen3_coder": (
        "<tool_call>\n<function=save>\n<parameter={}>\n{}\n</parameter>\n<parameter=count>\n2\n"
        "</parameter>\n</function>\n</tool_call>",
        "</parameter>",
    ),
    "seed_oss": (
        "<seed:tool_call>\n<function=save>\n<parameter={}>{}</parameter>\n<parameter=count>2"
        "</parameter>\n</function>\n</seed:tool_call>",
        "</parameter>",
    ),
    "glm45": (
        "<tool_call>save\n<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n<arg_key>count</arg_key>"
        "\n<arg_value>2</arg_value>\n</tool_call>",
        "</arg_value>",
    ),
    "longcat": (
        "<longcat_tool_call>save\n<longcat_arg_key>{}</longcat_arg_key>\n<longcat_arg_value>{}"
        "</longcat_arg_value>\n<longcat_arg_key>count</longcat_arg_key>\n<longcat_arg_value>2"
        "</longcat_arg_value>\n</longcat_tool_call>",
        "</longcat_arg_value>",
    ),
    "hy_v3": (
        "<tool_calls>\n<tool_call>save<tool_sep>\n<arg_key>{}</arg_key>\n<arg_value>{}"
        "</arg_value>\n<arg_key>count</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n</tool_calls>",
        "</arg_value>",
    ),
    "kimi_k3": (
        '<|open|>tools<|sep|><|open|>call tool="save" index="1"<|sep|><|open|>argument key="{}"'
        '<|sep|>{}<|close|>argument<|sep|><|open|>argument key="count" type="number"<|sep|>2'
        "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
        "<|close|>argument<|sep|>",
    ),
    "muse_glimmer": (
        ' to=save<|message|><atem:function_calls>\n<atem:invoke name="save">\n<atem:parameter '
        'name="{}">{}</atem:parameter>\n<atem:parameter name="count">2</atem:parameter>\n'
        "</atem:invoke>\n</atem:function_calls><|eot|>",
        "</atem:parameter>",
    ),
    "minimax_m2": (
        '<minimax:tool_call>\n<invoke name="save">\n<parameter name="{}">{}</parameter>\n'
        '<parameter name="count">2</parameter>\n</invoke>\n</minimax:tool_call>',
        "</parameter>",
    ),
}
TEXTS = [
    "<f><p>x{end}</f>",
    "{end}",
    "{end}{end}",
    "a\n{end}\nb",
    "{end}   \n {end} x </function> </parameter",
    "a </tool_call> b",
    "</function></invoke></tool_call>?",
]


def parser(family: str) -> FamilyParser:
    return FamilyParser(
        BY_NAME[family], TOOLS, reasoning_open=False, new_id=lambda name, index: f"{name}{index}"
    )


@pytest.mark.parametrize("family", CALLS)
@pytest.mark.parametrize("key", ["doc", "any"])
@pytest.mark.parametrize("text", TEXTS)
def test_an_end_tag_within_a_text_is_text(family: str, key: str, text: str) -> None:
    """Only an end that another argument or the end of the call follows is one, at every split."""
    call, end = CALLS[family]
    value = text.replace("{end}", end)
    output = f"{call.format(key, value)}Done."
    whole = replay(parser(family), [output])

    [made] = whole.calls
    assert (json.loads(made.arguments), made.complete) == ({key: value, "count": 2}, True)
    assert whole.content == "Done."
    for at in range(1, len(output), 5):
        pieces = [output[:at], output[at:]]
        assert replay(parser(family), pieces) == whole
    assert replay(parser(family), [*output]) == whole


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ("<parameter=any>1</parameter>no</function>\n</tool_call>", {"any": "1</parameter>no"}),
        ("<parameter=doc>1</parameter>\nno\n</function>", {"doc": "1</parameter>\nno"}),
        ("<parameter=count>1</parameter>\n</tool_call>", {"count": 1}),
        ("<parameter=count>1</parameter>\n<function=save>\n</function>", {"count": 1}),
        ("<parameter=count>1</parameter></function>", {"count": 1}),
    ],
)
def test_a_call_without_one_of_its_ends_is_complete(body: str, arguments: object) -> None:
    """Its arguments are JSON all the same, and it ends where the call does."""
    text = f"<tool_call>\n<function=save>\n{body}"
    answer = replay(parser("qwen3_coder"), [*text])

    assert json.loads(answer.calls[0].arguments) == arguments
    assert all(call.complete for call in answer.calls)
    assert complete(parser("qwen3_coder"), text)
    assert answer.content == ""
