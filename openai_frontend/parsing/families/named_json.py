"""Families that write a call's name before the JSON object of its arguments."""

from openai_frontend.parsing.dialects import bare_dialect
from openai_frontend.parsing.families.reasoning import THINK_UNTIL_CALLS
from openai_frontend.parsing.family import Family, Reasoning
from openai_frontend.parsing.identifiers import kimi_id, mistral_id
from openai_frontend.parsing.syntaxes.json_calls import JsonCalls
from openai_frontend.parsing.syntaxes.named_json import NamedJson, kimi_name
from openai_frontend.parsing.syntaxes.sections import Section

MISTRAL = Family(
    name="mistral",
    models="Mistral, Mixtral, Ministral, Magistral, Devstral",
    reasoning=Reasoning(start="[THINK]", end="[/THINK]", anywhere=True, ended_by_calls=True),
    tools=NamedJson(
        summary='`[TOOL_CALLS]f[ARGS]{"a": 1}`, '
        'older: `[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]`',
        section=Section(call_starts=("[TOOL_CALLS]",), call_ends=()),
        name_ends=("[ARGS]", "[CALL_ID]", "{"),
        id_mark="[CALL_ID]",
        listed=JsonCalls(summary="", starts=("[TOOL_CALLS]",)),
    ),
    id_form=mistral_id,
    special_tokens=True,
    endings=("</s>",),
    signs=(("[TOOL_CALLS]",), ("[AVAILABLE_TOOLS]",)),
    model_types=("mistral", "mixtral", "mistral3", "pixtral"),
)
KIMI_K2 = Family(
    name="kimi_k2",
    models="Kimi K2, Kimi K2 Thinking",
    reasoning=THINK_UNTIL_CALLS,
    tools=NamedJson(
        summary="`<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        '{"a": 1}<|tool_call_end|>`',
        section=Section(
            call_starts=("<|tool_call_begin|>",),
            call_ends=("<|tool_call_end|>",),
            starts=("<|tool_calls_section_begin|>",),
            ends=("<|tool_calls_section_end|>",),
        ),
        name_ends=("<|tool_call_argument_begin|>",),
        split_name=kimi_name,
    ),
    id_form=kimi_id,
    special_tokens=True,
    endings=("<|im_end|>",),
    signs=(("<|tool_calls_section_begin|>",),),
    model_types=("kimi_k2",),
)
GEMMA4 = Family(
    name="gemma4",
    models="Gemma 4",
    reasoning=Reasoning(
        start="<|channel>thought", end="<channel|>", anywhere=True, ended_by_calls=True
    ),
    tools=NamedJson(
        summary='`<|tool_call>call:f{a:1,b:<|"|>x<|"|>}<tool_call|>`',
        section=Section(call_starts=("<|tool_call>call:",), call_ends=("<tool_call|>",)),
        name_ends=("{",),
        dialect=bare_dialect('<|"|>'),
    ),
    special_tokens=True,
    endings=("<turn|>", "<|tool_response>", "<eos>"),
    signs=(("<|tool_call>",),),
    model_types=("gemma4", "gemma4_text"),
    aliases=("gemma",),
)
FUNCTION_GEMMA = Family(
    name="functiongemma",
    models="FunctionGemma",
    tools=NamedJson(
        summary="`<start_function_call>call:f{a:1,b:<escape>x<escape>}<end_function_call>`",
        section=Section(
            call_starts=("<start_function_call>call:",), call_ends=("<end_function_call>",)
        ),
        name_ends=("{",),
        dialect=bare_dialect("<escape>"),
    ),
    special_tokens=True,
    endings=("<end_of_turn>", "<start_function_response>", "<eos>"),
    signs=(("<start_function_call>",), ("<start_function_declaration>",)),
)
LLAMA_FUNCTION_TAG = Family(
    name="llama3_function_tag",
    models="Llama 3.1 told to use `<function=...>`, Functionary 3.1",
    tools=NamedJson(
        summary='`<function=f>{"a": 1}</function>`',
        section=Section(call_starts=("<function=",), call_ends=("</function>",)),
        name_ends=(">",),
    ),
    special_tokens=True,
    endings=("<|eot_id|>", "<|eom_id|>"),
    signs=(("<function=", "<|start_header_id|>"),),
    without=("<parameter=",),
)
