"""How each model family writes tool calls, as data for grammars.

A family that is not in the table is constrained to calls as JSON, which the parser then expects.
"""
# ruff: noqa: RUF001  # DeepSeek's bars are meant

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagged:
    """Arguments between tags: text verbatim, other values as JSON. `%s` is the name, `%t` the
    value's type in JSON.
    """

    text: str  # before a text
    value: str  # before any other value
    end: str  # after either; no text can contain `mark`
    mark: str


# One JSON object, Python keyword arguments, or tags.
Style = Literal["json", "python"] | Tagged


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """One way to write calls. `%s` is the function's name."""

    begin: str
    end: str = ""
    trigger: str  # starts calls within text, and nothing else
    style: Style = "json"
    section: tuple[str, str] = ("", "")  # around all calls
    separator: str = ""
    numbered: str = ""  # separates a call's number from its arguments


def _objects(
    opens: str, closes: str, *, name: str = "name", arguments: str = "arguments"
) -> CallForm:
    """An array of objects between two markers."""
    return CallForm(
        begin=f'{{"{name}": "%s", "{arguments}": ',
        end="}",
        trigger=opens,
        section=(f"{opens}[", f"]{closes}"),
        separator=", ",
    )


def _dsml(section: str) -> CallForm:
    mark = "｜DSML｜"
    return CallForm(
        begin=f'<{mark}invoke name="%s">\n',
        end=f"</{mark}invoke>",
        trigger=f"<{mark}{section}>",
        style=Tagged(
            text=f'<{mark}parameter name="%s" string="true">',
            value=f'<{mark}parameter name="%s" string="false">',
            end=f"</{mark}parameter>\n",
            mark=f"</{mark}parameter>",
        ),
        section=(f"<{mark}{section}>\n", f"\n</{mark}{section}>"),
        separator="\n",
    )


def _argument_tags(suffix: str, name_end: str, line: str) -> CallForm:
    """Hunyuan's. Older models write each tag on its own line."""
    key = f"<arg_key{suffix}>%s</arg_key{suffix}>{line}<arg_value{suffix}>"
    return CallForm(
        begin=f"<tool_call{suffix}>%s{name_end}{line}",
        end=f"</tool_call{suffix}>",
        trigger=f"<tool_calls{suffix}>",
        style=Tagged(
            text=key,
            value=key,
            end=f"</arg_value{suffix}>{line}",
            mark=f"</arg_value{suffix}>",
        ),
        section=(f"<tool_calls{suffix}>{line}", f"{line}</tool_calls{suffix}>"),
        separator=line,
    )


def _function_tags(section: str, line: str = "\n") -> CallForm:
    return CallForm(
        begin=f"<{section}>\n<function=%s>\n",
        end=f"</function>\n</{section}>",
        trigger=f"<{section}>",
        style=Tagged(
            text=f"<parameter=%s>{line}",
            value=f"<parameter=%s>{line}",
            end=f"{line}</parameter>\n",
            mark="</parameter>",
        ),
        separator="\n",
    )


def _object(tag: str) -> CallForm:
    """One object between a tag and its end."""
    return CallForm(
        begin=f'<{tag}>\n{{"name": "%s", "arguments": ',
        end=f"}}\n</{tag}>",
        trigger=f"<{tag}>",
        separator="\n",
    )


_HERMES = _object("tool_call")
_DEEPSEEK_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_DEEPSEEK_V3 = CallForm(
    begin="<｜tool▁call▁begin｜>function<｜tool▁sep｜>%s\n```json\n",
    end="\n```<｜tool▁call▁end｜>",
    trigger=_DEEPSEEK_SECTION[0],
    section=_DEEPSEEK_SECTION,
    separator="\n",
)

_PYTHON_LIST = CallForm(
    begin="%s(",
    end=")",
    trigger="[%s(",
    style="python",
    section=("[", "]"),
    separator=", ",
)

TAGS: Mapping[str, tuple[CallForm, ...]] = {
    "hermes": (_HERMES,),
    "qwen3": (_HERMES,),
    "ernie45": (_HERMES,),
    "llama3_json": (
        CallForm(
            begin='{"name": "%s", "parameters": ',
            end="}",
            trigger='{"name": "',
            separator="; ",
        ),
    ),
    "llama3_function_tag": (
        CallForm(begin="<function=%s>", end="</function>", trigger="<function="),
    ),
    "json": (
        CallForm(
            begin='{"name": "%s", "arguments": ',
            end="}",
            trigger='{"name": "',
            separator="\n",
        ),
    ),
    "granite": (_objects("<|tool_call|>", ""),),
    "granite_20b_fc": (
        CallForm(
            begin='<function_call> {"name": "%s", "arguments": ',
            end="}",
            trigger="<function_call>",
            separator="\n",
        ),
    ),
    "phi4": (
        _objects("functools", ""),
        CallForm(
            begin='<|tool_call|>{"name": "%s", "arguments": ',
            end="}<|/tool_call|>",
            trigger="<|tool_call|>",
        ),
    ),
    "nemotron": (_objects("<TOOLCALL>", "</TOOLCALL>"),),
    "jamba": (_objects("<tool_calls>", "</tool_calls>"),),
    "internlm": (
        CallForm(
            begin='<|action_start|><|plugin|>{"name": "%s", "parameters": ',
            end="}<|action_end|>",
            trigger="<|action_start|>",
        ),
    ),
    "command_r7b": (
        _objects("<|START_ACTION|>", "<|END_ACTION|>", name="tool_name", arguments="parameters"),
    ),
    "apertus": (
        CallForm(
            begin='{"%s": ',
            end="}",
            trigger="<|tools_prefix|>",
            section=("<|tools_prefix|>[", "]<|tools_suffix|>"),
            separator=", ",
        ),
    ),
    "gigachat3": tuple(
        CallForm(begin=f'{start}{{"name": "%s", "arguments": ', end="}", trigger=start)
        for start in ("<|function_call|>", "function call<|role_sep|>\n")
    ),
    # Newer models write the first form, older ones the second.
    "mistral": (
        CallForm(begin="[TOOL_CALLS]%s[ARGS]", trigger="[TOOL_CALLS]"),
        CallForm(
            begin='{"name": "%s", "arguments": ',
            end="}",
            trigger="[TOOL_CALLS]",
            section=("[TOOL_CALLS] [", "]"),
            separator=", ",
        ),
    ),
    "kimi_k2": (
        CallForm(
            begin="<|tool_call_begin|>functions.%s:",
            end="<|tool_call_end|>",
            trigger="<|tool_calls_section_begin|>",
            section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            numbered="<|tool_call_argument_begin|>",
        ),
    ),
    "kimi_k3": (
        CallForm(
            begin='<|open|>call tool="%s" index="',
            end="<|close|>call<|sep|>",
            trigger="<|open|>tools<|sep|>",
            style=Tagged(
                text='<|open|>argument key="%s" type="string"<|sep|>',
                value='<|open|>argument key="%s" type="%t"<|sep|>',
                end="<|close|>argument<|sep|>",
                mark="<|close|>argument<|sep|>",
            ),
            section=("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
            numbered='"<|sep|>',
        ),
    ),
    "deepseek_r1": (_DEEPSEEK_V3,),
    "deepseek_v3": (_DEEPSEEK_V3,),
    "deepseek_v31": (
        CallForm(
            begin="<｜tool▁call▁begin｜>%s<｜tool▁sep｜>",
            end="<｜tool▁call▁end｜>",
            trigger=_DEEPSEEK_SECTION[0],
            section=_DEEPSEEK_SECTION,
        ),
    ),
    "deepseek_v32": (_dsml("function_calls"),),
    "deepseek_v4": (_dsml("tool_calls"),),
    "qwen3_coder": (_function_tags("tool_call"),),
    "qwen3_xml": (_function_tags("tool_call"),),
    "mimo": (_function_tags("tool_call", line=""),),
    "seed_oss": (_function_tags("seed:tool_call"),),
    "glm45": (
        CallForm(
            begin="<tool_call>%s\n",
            end="</tool_call>",
            trigger="<tool_call>",
            style=Tagged(
                text="<arg_key>%s</arg_key>\n<arg_value>",
                value="<arg_key>%s</arg_key>\n<arg_value>",
                end="</arg_value>\n",
                mark="</arg_value>",
            ),
            separator="\n",
        ),
    ),
    "hy_v3": (_argument_tags("", "<tool_sep>", "\n"),),
    "hy_v4": (_argument_tags(":opensource", "", ""),),
    "minimax_m2": (
        CallForm(
            begin='<invoke name="%s">\n',
            end="</invoke>",
            trigger="<minimax:tool_call>",
            style=Tagged(
                text='<parameter name="%s">',
                value='<parameter name="%s">',
                end="</parameter>\n",
                mark="</parameter>",
            ),
            section=("<minimax:tool_call>\n", "\n</minimax:tool_call>"),
            separator="\n",
        ),
    ),
    "llama4_pythonic": (_PYTHON_LIST,),
    "pythonic": (_PYTHON_LIST,),
    "olmo3": (
        CallForm(
            begin="%s(",
            end=")",
            trigger="<function_calls>",
            style="python",
            section=("<function_calls>", "</function_calls>"),
            separator="\n",
        ),
    ),
    "lfm2": (
        CallForm(
            begin="%s(",
            end=")",
            trigger="<|tool_call_start|>",
            style="python",
            section=("<|tool_call_start|>[", "]<|tool_call_end|>"),
            separator=", ",
        ),
    ),
}

# Alternatives that the parser also reads, for arguments that the style above cannot constrain, such
# as a text with a pattern between tags.
JSON_TAGS: Mapping[str, tuple[CallForm, ...]] = {
    "qwen3_coder": (_HERMES,),
    "qwen3_xml": (_HERMES,),
    "mimo": (_HERMES,),
    "seed_oss": (_object("seed:tool_call"),),
    "glm45": (_HERMES,),
    "longcat": (_object("longcat_tool_call"),),
    "lfm2": (_objects("<|tool_call_start|>", "<|tool_call_end|>"),),
}
