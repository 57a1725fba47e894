"""Families that spell a call's arguments one by one between tags."""

from openai_frontend.parsing.families.reasoning import THINK, THINKING
from openai_frontend.parsing.family import Family, Reasoning
from openai_frontend.parsing.syntaxes.json_calls import JsonCalls
from openai_frontend.parsing.syntaxes.key_values import KeyValues
from openai_frontend.parsing.syntaxes.sections import Section

_CHATML_ENDINGS = ("<|im_end|>", "<|endoftext|>")


def _json(tag: str) -> JsonCalls:
    return JsonCalls(summary="", starts=(f"<{tag}>",), ends=(f"</{tag}>",))


def _function_tags(section: str) -> KeyValues:
    return KeyValues(
        summary=f"`<{section}><function=f><parameter=a>1</parameter></function></{section}>`",
        section=Section(
            call_starts=("<function=",),
            call_ends=("</function>",),
            starts=(f"<{section}>",),
            ends=(f"</{section}>",),
        ),
        name_ends=(">",),
        key_start="<parameter=",
        key_ends={">": None},
        value_ends=("</parameter>",),
        value_on_own_lines=True,
        json_form=_json(section),
    )


def _argument_tags(prefix: str) -> KeyValues:
    call, key, value = f"{prefix}tool_call", f"{prefix}arg_key", f"{prefix}arg_value"
    return KeyValues(
        summary=f"`<{call}>f<{key}>a</{key}><{value}>1</{value}></{call}>`",
        section=Section(call_starts=(f"<{call}>",), call_ends=(f"</{call}>",)),
        name_ends=("\n",),
        key_start=f"<{key}>",
        key_ends={f"</{key}>": None},
        value_start=f"<{value}>",
        value_ends=(f"</{value}>",),
        json_form=_json(call),
    )


QWEN3_CODER = Family(
    name="qwen3_coder",
    models="Qwen3-Coder",
    tools=_function_tags("tool_call"),
    endings=_CHATML_ENDINGS,
    signs=(("<function=", "<parameter="),),
    without=("<think>", "</think>"),
)
QWEN3_XML = Family(
    name="qwen3_xml",
    models="Qwen3.5, Qwen3-Next, Nemotron 3, Granite 4.2, Step 3.5, MiMo",
    reasoning=THINK,
    tools=_function_tags("tool_call"),
    endings=_CHATML_ENDINGS,
    signs=(("<function=", "<parameter="),),
    without=("<seed:tool_call>",),
    model_types=("qwen3_5", "qwen3_5_moe", "qwen3_next", "mimo", "step3p5"),
    aliases=("nemotron_v3", "granite_thinking", "step3p5", "mimo"),
)
SEED_OSS = Family(
    name="seed_oss",
    models="Seed-OSS",
    reasoning=Reasoning(start="<seed:think>", end="</seed:think>"),
    tools=_function_tags("seed:tool_call"),
    special_tokens=True,
    endings=("<seed:eos>",),
    signs=(("<seed:tool_call>",),),
    model_types=("seed_oss",),
)
GLM45 = Family(
    name="glm45",
    models="GLM-4.5, 4.6 and 4.7, GLM-5",
    reasoning=THINK,
    tools=_argument_tags(""),
    endings=("<|user|>", "<|observation|>", "<|endoftext|>"),
    signs=(("<arg_key>", "<arg_value>"),),
    model_types=("glm4_moe", "glm4v_moe", "glm4_moe_lite"),
    aliases=("glm46", "glm47"),
)
LONGCAT = Family(
    name="longcat",
    models="LongCat-Flash",
    reasoning=Reasoning(start="<longcat_think>", end="</longcat_think>"),
    tools=_argument_tags("longcat_"),
    special_tokens=True,
    endings=("</longcat_s>",),
    signs=(("<longcat_tool_call>",),),
    model_types=("longcat_flash",),
)
MINIMAX_M2 = Family(
    name="minimax_m2",
    models="MiniMax M2 and M2.1",
    reasoning=THINKING,
    tools=KeyValues(
        summary='`<minimax:tool_call><invoke name="f"><parameter name="a">1</parameter>'
        "</invoke></minimax:tool_call>`",
        section=Section(
            call_starts=('<invoke name="',),
            call_ends=("</invoke>",),
            starts=("<minimax:tool_call>",),
            ends=("</minimax:tool_call>",),
        ),
        name_ends=('">',),
        key_start='<parameter name="',
        value_ends=("</parameter>",),
    ),
    special_tokens=True,
    endings=("[e~[",),
    signs=(("<minimax:tool_call>",),),
    model_types=("minimax_m2",),
)
