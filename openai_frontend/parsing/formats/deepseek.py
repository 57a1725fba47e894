"""DeepSeek's families. Their markers are spelled with full-width bars."""
# ruff: noqa: RUF001  # the bars are meant

from dataclasses import replace

from openai_frontend.parsing.family import THINK_UNTIL_CALLS, THINKING_UNTIL_CALLS, Family, Section
from openai_frontend.parsing.formats.key_values import TYPED_TAG, KeyValues
from openai_frontend.parsing.formats.named_json import NamedJson

_ENDINGS = ("<｜end▁of▁sentence｜>",)


def _dsml(section: str) -> KeyValues:
    mark = "｜DSML｜"
    return KeyValues(
        summary=f'`<{mark}{section}><{mark}invoke name="f"><{mark}parameter name="a" '
        f'string="false">1</{mark}parameter></{mark}invoke></{mark}{section}>`',
        section=Section(
            call_starts=(f'<{mark}invoke name="',),
            call_ends=(f"</{mark}invoke>",),
            starts=(f"<{mark}{section}>",),
            ends=(f"</{mark}{section}>",),
        ),
        name_ends=('">',),
        key_start=f'<{mark}parameter name="',
        key_ends=TYPED_TAG,
        value_ends=(f"</{mark}parameter>",),
    )


# Models mix the two forms, so each family reads both.
_V3_CALLS = NamedJson(
    summary="`<｜tool▁call▁begin｜>function<｜tool▁sep｜>f`, a `json` fence, `<｜tool▁call▁end｜>`",
    section=Section(
        call_starts=("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "<｜tool▁call▁begin｜>"),
        call_ends=("<｜tool▁call▁end｜>",),
        starts=("<｜tool▁calls▁begin｜>",),
        ends=("<｜tool▁calls▁end｜>",),
    ),
    name_ends=("\n", "<｜tool▁sep｜>", "{"),
    fence=("```json", "```"),
)
_V31_CALLS = replace(
    _V3_CALLS, summary='`<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>`'
)
R1 = Family(
    name="deepseek_r1",
    models="DeepSeek-R1 and its distillations",
    reasoning=THINKING_UNTIL_CALLS,
    tools=_V3_CALLS,
    special_tokens=True,
    endings=_ENDINGS,
    signs=(("<｜tool▁calls▁begin｜>", "```json", "</think>"),),
)
V3 = Family(
    name="deepseek_v3",
    models="DeepSeek-V3",
    tools=_V3_CALLS,
    special_tokens=True,
    endings=_ENDINGS,
    signs=(("<｜tool▁calls▁begin｜>", "```json"),),
    model_types=("deepseek_v3",),
)
V31 = Family(
    name="deepseek_v31",
    models="DeepSeek-V3.1",
    reasoning=THINK_UNTIL_CALLS,
    tools=_V31_CALLS,
    special_tokens=True,
    endings=_ENDINGS,
    signs=(("<｜tool▁calls▁begin｜>",),),
)
V32 = Family(
    name="deepseek_v32",
    models="DeepSeek-V3.2",
    reasoning=THINK_UNTIL_CALLS,
    tools=_dsml("function_calls"),
    special_tokens=True,
    endings=_ENDINGS,
    signs=(("｜DSML｜", "function_calls"),),
    model_types=("deepseek_v32",),
)
V4 = Family(
    name="deepseek_v4",
    models="DeepSeek-V4",
    reasoning=THINK_UNTIL_CALLS,
    tools=_dsml("tool_calls"),
    special_tokens=True,
    endings=_ENDINGS,
    signs=(("｜DSML｜",),),
    model_types=("deepseek_v4",),
)
