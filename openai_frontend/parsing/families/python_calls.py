"""Families that write calls as Python."""

from openai_frontend.parsing.families.reasoning import THINK
from openai_frontend.parsing.family import Family
from openai_frontend.parsing.syntaxes.json_calls import JsonCalls
from openai_frontend.parsing.syntaxes.python_calls import PythonCalls

LLAMA4_PYTHONIC = Family(
    name="llama4_pythonic",
    models="Llama 4",
    tools=PythonCalls(
        summary="`[f(a=1), g()]`, also between `<|python_start|>` and `<|python_end|>`",
        starts=("<|python_start|>",),
        ends=("<|python_end|>",),
        bare_starts=("[",),
        line_starts=("\n[",),
    ),
    special_tokens=True,
    endings=("<|eot|>", "<|eom|>"),
    signs=(("<|header_start|>",),),
    model_types=("llama4", "llama4_text"),
    aliases=("llama4",),
)
PYTHONIC = Family(
    name="pythonic",
    models="Llama 3.2 1B and 3B, ToolACE, Gemma 3",
    tools=PythonCalls(
        summary="`[f(a=1), g()]`, also in a `tool_code` fence",
        starts=("```tool_code\n",),
        ends=("```",),
        bare_starts=("[",),
        line_starts=("\n[",),
    ),
    special_tokens=True,
    endings=("<|eot_id|>", "<|eom_id|>", "<end_of_turn>"),
    signs=(("func_name1(",), ("```tool_code",)),
    model_types=("gemma3", "gemma3_text"),
    aliases=("gemma3",),
)
OLMO3 = Family(
    name="olmo3",
    models="OLMo 3",
    reasoning=THINK,
    tools=PythonCalls(
        summary="`<function_calls>f(a=1)</function_calls>`, one on each line",
        starts=("<function_calls>",),
        ends=("</function_calls>",),
        on_lines=True,
    ),
    endings=("<|im_end|>",),
    signs=(("<function_calls>",),),
    without=("DSML",),
    model_types=("olmo3",),
)
LFM2 = Family(
    name="lfm2",
    models="LFM2",
    reasoning=THINK,
    tools=PythonCalls(
        summary="`<|tool_call_start|>[f(a=1)]<|tool_call_end|>`, JSON as well",
        starts=("<|tool_call_start|>",),
        ends=("<|tool_call_end|>",),
        json_form=JsonCalls(
            summary="", starts=("<|tool_call_start|>",), ends=("<|tool_call_end|>",)
        ),
    ),
    special_tokens=True,
    endings=("<|im_end|>",),
    signs=(("<|tool_call_start|>",), ("<|tool_list_start|>",)),
    model_types=("lfm2", "lfm2_moe"),
)
