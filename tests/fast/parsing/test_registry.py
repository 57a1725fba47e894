"""Which family is chosen for a model, and with what evidence."""

import pytest

from openai_frontend.parsing.output_format import constrained_to_calls
from openai_frontend.parsing.parser import FamilyParser
from openai_frontend.parsing.registry import BY_NAME, FAMILIES, combined, family_for
from tests.fast.parsing.samples import TOOLS, replay

# What the published chat templates have that no other family's has.
EXCERPTS = [
    ("hermes", "{%- if tools %}<tool_call>\n{{ call | tojson }}\n</tool_call>"),
    ("qwen3", "{%- if tools %}<tool_call>{% endif %}{{ content.split('</think>') }}"),
    ("qwen3_coder", "{%- if tools %}<tool_call>\n<function=f>\n<parameter=a>"),
    ("qwen3_xml", "{%- if tools %}<tool_call>\n<function=f>\n<parameter=a>{% endif %}</think>"),
    ("seed_oss", "<seed:tool_call>\n<function=f>\n<parameter=a>"),
    ("glm45", "<tool_call>{{ name }}\n<arg_key>a</arg_key>\n<arg_value>1</arg_value></think>"),
    ("hy_v3", "<tool_calls>\n<tool_call>{{ name }}<tool_sep>\n<arg_key>a</arg_key><arg_value>"),
    ("hy_v4", "<tool_calls:opensource><arg_key:opensource>a</arg_key:opensource></think>"),
    ("muse_glimmer", '<|start|>assistant to=<|message|><atem:function_calls>\n<atem:invoke name="'),
    ("kimi_k3", '<|open|>tools<|sep|><|open|>call tool="{{ name }}"'),
    ("apertus", "{%- if tools %}{{ '<|inner_prefix|>' }}{{ '<|tools_prefix|>[' }}"),
    ("gigachat3", "{%- if tools %}<|message_sep|>\n\nfunction call<|role_sep|>\n"),
    ("gigachat3", "{%- if tools %}assistant<|role_sep|>\n{{ text }}<|function_call|>{{ call }}"),
    ("ernie45", "{%- if tools %}<tool_call>\n{{ call }}</tool_call>\n</think>\n<response>"),
    ("minimax_m3", "{%- set ns_token = ']<]minimax[>[' %}<minimax:tool_call></mm:think>"),
    ("minimax_m2", '<minimax:tool_call>\n<invoke name="f"></think>'),
    ("deepseek_v32", "{% set mark = '｜DSML｜' %}<{{ mark }}function_calls></think>"),  # noqa: RUF001
    ("deepseek_v4", "{% set mark = '｜DSML｜' %}<{{ mark }}tool_calls></think>"),  # noqa: RUF001
    ("deepseek_v3", "<｜tool▁calls▁begin｜>function\n```json\n"),  # noqa: RUF001
    ("deepseek_r1", "<｜tool▁calls▁begin｜>function\n```json\n</think>"),  # noqa: RUF001
    ("deepseek_v31", "<｜tool▁calls▁begin｜>{{ name }}<｜tool▁sep｜></think>"),  # noqa: RUF001
    ("kimi_k2", "<|tool_calls_section_begin|><think></think>"),
    ("mistral", "[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]"),
    ("gemma4", "{{ '<|tool_call>call:' + name }}{{ '<|channel>thought' }}"),
    ("functiongemma", "<start_function_call>call:{{ name }}"),
    ("granite", "<|start_of_role|>assistant<|end_of_role|><|tool_call|>"),
    ("hermes", "<|start_of_role|>assistant<|end_of_role|><tool_call>"),
    ("nemotron", "<TOOLCALL>[{{ calls }}]</TOOLCALL><think></think>"),
    ("phi4", "<|tool|>{{ tools | tojson }}<|/tool|>"),
    ("command_r7b", "<|START_THINKING|><|START_ACTION|>[\n```json"),
    ("internlm", "<|action_start|><|plugin|>"),
    ("jamba", "<tool_calls>{{ calls }}</tool_calls>"),
    ("longcat", "<longcat_tool_call><longcat_think>"),
    ("llama3_json", '<|start_header_id|>{% if tools %}{"name": f, "parameters": {}}'),
    ("llama3_function_tag", "<|start_header_id|>{% if tools %}<function=f>{}</function>"),
    ("pythonic", "<|start_header_id|>{% if tools %}[func_name1(a=1)]"),
    ("llama4_pythonic", "<|header_start|>{% if tools %}[func_name1(a=1)]"),
    ("olmo3", "<|im_start|><function_calls>\nf(a=1)"),
    ("lfm2", "<|tool_list_start|>{{ tools }}"),
    ("gpt_oss", "<|start|>assistant<|channel|>final<|message|>"),
    ("think", "{{ content.split('</think>') }}"),
    ("json", "{% if tools %}{{ tools | tojson }} Think in <think></think>."),
    ("json", "{% if tools %}Answer with JSON.{% endif %}"),
    ("text", "{{ raise_exception('This model knows no tools.') }}"),
]


@pytest.mark.parametrize(("family", "template"), EXCERPTS)
def test_template_decides(family: str, template: str) -> None:
    """A family's own markers in the chat template select it."""

    assert family == family_for(template).family.name


@pytest.mark.parametrize("template", [template for _, template in EXCERPTS[:-3]])
def test_the_evidence_is_in_the_template(template: str) -> None:
    """The evidence quotes text of the template."""

    for reason in family_for(template).evidence:
        assert reason.removeprefix("The chat template contains '").removesuffix("'.") in template


@pytest.mark.parametrize(
    ("family", "template", "model_type"),
    [
        ("llama3_json", None, "llama"),
        ("kimi_k2", None, "kimi_k2"),
        ("gpt_oss", None, "gpt_oss"),
        ("text", None, "gpt2"),
        ("hermes", "{% if tools %}<tool_call>", "llama"),  # trained on Hermes' format
        ("text", "{{ messages[0].content }}", "llama"),  # is not shown tools, so calls none
    ],
)
def test_model_type_decides_without_a_template(
    family: str, template: str | None, model_type: str
) -> None:
    """The config's model_type; a template wins over it."""

    assert family == family_for(template, model_type).family.name


def test_model_types_are_unique() -> None:
    """No model_type belongs to two families."""

    types = [model_type for family in FAMILIES for model_type in family.model_types]

    assert len(types) == len(set(types))


def test_names_are_unique() -> None:
    """No name or alias belongs to two families."""

    assert len(BY_NAME) == sum(1 + len(family.aliases) for family in FAMILIES)


def test_aliases() -> None:
    """Names that other servers use are known."""

    assert BY_NAME["hermes"] is BY_NAME["qwen2.5"] is BY_NAME["granite4"]
    assert BY_NAME["command_r7b"] is BY_NAME["cohere_command3"] is BY_NAME["cohere_command4"]
    assert BY_NAME["glm45"] is BY_NAME["ling3"]


def test_combined() -> None:
    """One family's calls can be combined with another's reasoning."""

    family = combined(BY_NAME["hermes"], BY_NAME["deepseek_r1"])
    text = 'Hm.</think><tool_call>{"name": "now", "arguments": {}}</tool_call>'

    answer = replay(FamilyParser(family, TOOLS), [text])

    assert (answer.reasoning, [call.name for call in answer.calls]) == ("Hm.", ["now"])


def test_constrained_to_calls() -> None:
    """If the request allows only calls, a call in the family's own format is text."""

    own = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    family = constrained_to_calls(BY_NAME["hermes"])

    assert replay(FamilyParser(family, TOOLS), [own]).content == own
    listed = replay(FamilyParser(family, TOOLS), ['[{"name": "now", "parameters": {"a": 1}}]'])
    assert [(call.name, call.arguments) for call in listed.calls] == [("now", '{"a": 1}')]


def test_reasoning_that_starts_open() -> None:
    """Some models continue as if the prompt had opened reasoning, unless it has closed it."""

    reasoning = BY_NAME["deepseek_r1"].reasoning

    assert reasoning.is_open_after("<｜Assistant｜>")  # noqa: RUF001
    assert not reasoning.is_open_after("<think>\n</think>\n")
