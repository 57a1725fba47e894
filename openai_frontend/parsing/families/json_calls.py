"""Families that write a call as one JSON object with a name and arguments."""

from openai_frontend.parsing.families.reasoning import THINK, THINKING
from openai_frontend.parsing.family import TAKES_TOOLS, Family, Reasoning
from openai_frontend.parsing.syntaxes.json_calls import JsonCalls

_CHATML_ENDINGS = ("<|im_end|>", "<|endoftext|>")

HERMES_CALLS = JsonCalls(
    summary='`<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>`',
    starts=("<tool_call>",),
    ends=("</tool_call>",),
)
QWEN3 = Family(
    name="qwen3",
    models="Qwen3, QwQ, SmolLM3, ERNIE 4.5 Thinking",
    reasoning=THINK,
    tools=HERMES_CALLS,
    endings=_CHATML_ENDINGS,
    signs=(("<tool_call>", "</think>"), ("<tool_call>", "<think>")),
    model_types=("qwen3", "qwen3_moe", "smollm3"),
)
HERMES = Family(
    name="hermes",
    models="Hermes 2 Pro, Hermes 3, Qwen2.5, Granite 4",
    tools=HERMES_CALLS,
    endings=_CHATML_ENDINGS,
    signs=(("<tool_call>",),),
    model_types=("qwen2", "qwen2_moe", "qwen2_5_vl", "granitemoehybrid"),
    aliases=("qwen2.5", "qwen25"),
)
LLAMA3_JSON = Family(
    name="llama3_json",
    models="Llama 3.1, 3.2 and 3.3",
    tools=JsonCalls(
        summary='`{"name": "f", "parameters": {"a": 1}}`, also behind `<|python_tag|>`',
        starts=("<|python_tag|>",),
        separators=(";",),
        bare_starts=("{",),
        line_starts=("\n{",),
    ),
    special_tokens=True,
    endings=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    signs=(
        ("<|start_header_id|>", "tools", '"parameters"'),
        ("<|python_tag|>", '"parameters"'),
    ),
    without=("<tool_call>", "<TOOLCALL>"),
    model_types=("llama", "mllama"),
    aliases=("llama3",),
)
GRANITE = Family(
    name="granite",
    models="Granite 3.0 to 3.3",
    reasoning=Reasoning(start="Here is my thought process:", end="Here is my response:"),
    tools=JsonCalls(
        summary='`<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]`',
        starts=("<|tool_call|>", "<tool_call>"),
        ends=("</tool_call>",),
    ),
    special_tokens=True,
    endings=("<|end_of_text|>",),
    signs=(("<|start_of_role|>", "<|tool_call|>"), ("<|start_of_role|>", "thought process")),
    model_types=("granite", "granitemoe"),
)
GRANITE_20B_FC = Family(
    name="granite_20b_fc",
    models="Granite 20B function calling",
    tools=JsonCalls(
        summary='`<function_call> {"name": "f", "arguments": {"a": 1}}`',
        starts=("<function_call>",),
    ),
    signs=(("<function_call>", "no_function"),),
    aliases=("granite-20b-fc",),
)
PHI4 = Family(
    name="phi4",
    models="Phi-4-mini",
    tools=JsonCalls(
        summary='`functools[{"name": "f", "arguments": {"a": 1}}]`, '
        "`<|tool_call|>{...}<|/tool_call|>`",
        starts=("functools", "<|tool_call|>"),
        ends=("<|/tool_call|>",),
    ),
    special_tokens=True,
    endings=("<|end|>", "<|endoftext|>"),
    signs=(("<|tool|>", "<|/tool|>"), ("functools[",)),
    model_types=("phi3", "phi4mm"),
    aliases=("phi4_mini_json",),
)
NEMOTRON = Family(
    name="nemotron",
    models="Nemotron Nano 9B v2, Llama Nemotron Super and Ultra",
    reasoning=THINK,
    tools=JsonCalls(
        summary='`<TOOLCALL>[{"name": "f", "arguments": {"a": 1}}]</TOOLCALL>`',
        starts=("<TOOLCALL>",),
        ends=("</TOOLCALL>",),
    ),
    endings=("<SPECIAL_12>", "<|eot_id|>"),
    signs=(("<TOOLCALL>",),),
    model_types=("nemotron_h", "nemotron-nas"),
)
JAMBA = Family(
    name="jamba",
    models="Jamba 1.5 and later, Hunyuan A13B, MiniMax M1",
    reasoning=THINK,
    tools=JsonCalls(
        summary='`<tool_calls>[{"name": "f", "arguments": {"a": 1}}]</tool_calls>`',
        starts=("<tool_calls>",),
        ends=("</tool_calls>",),
    ),
    signs=(("<tool_calls>",),),
    model_types=("jamba", "hunyuan_v1_moe", "minimax", "minimax_text_01"),
    aliases=("hunyuan_a13b", "minimax_m1"),
)
INTERNLM = Family(
    name="internlm",
    models="InternLM 2.5 and 3",
    tools=JsonCalls(
        summary='`<|action_start|><|plugin|>{"name": "f", "parameters": {"a": 1}}<|action_end|>`',
        starts=("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
        ends=("<|action_end|>",),
    ),
    special_tokens=True,
    endings=_CHATML_ENDINGS,
    signs=(("<|action_start|>", "<|plugin|>"),),
    model_types=("internlm2", "internlm3"),
)
COMMAND_R7B = Family(
    name="command_r7b",
    models="Command R7B, Command A",
    reasoning=Reasoning(
        start="<|START_THINKING|>", end="<|END_THINKING|>", anywhere=True, ended_by_calls=True
    ),
    tools=JsonCalls(
        summary='`<|START_ACTION|>[{"tool_name": "f", "parameters": {"a": 1}}]<|END_ACTION|>`',
        starts=("<|START_ACTION|>",),
        ends=("<|END_ACTION|>",),
    ),
    special_tokens=True,
    endings=(
        "<|START_RESPONSE|>",
        "<|END_RESPONSE|>",
        "<|END_OF_TURN_TOKEN|>",
        "<|START_TEXT|>",
        "<|END_TEXT|>",
    ),
    signs=(("<|START_ACTION|>",),),
    model_types=("cohere2",),
    aliases=("cohere_command3",),
)
GENERIC_JSON = Family(
    name="json",
    models="any other that is told to answer with JSON",
    reasoning=THINK,
    tools=JsonCalls(
        summary='`{"name": "f", "arguments": {"a": 1}}` on its own line, in a fence or tags',
        starts=("```json\n", "<tool_call>", "<tool_calls>", "<function_call>"),
        ends=("```", "</tool_call>", "</tool_calls>", "</function_call>"),
        bare_starts=("{", "["),
        line_starts=("\n{", "\n["),
        offered_only=True,
    ),
    aliases=("generic_json", "xlam"),
)
THINK_ONLY = Family(
    name="think",
    models="any that thinks between `<think>` and `</think>` and calls no tools",
    reasoning=THINKING,
    signs=(("<think>",), ("</think>",)),
    without=TAKES_TOOLS,
)
