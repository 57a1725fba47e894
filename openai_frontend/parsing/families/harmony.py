"""The family that writes harmony."""

from openai_frontend.parsing.family import Family
from openai_frontend.parsing.syntaxes.harmony import Harmony

GPT_OSS = Family(
    name="gpt_oss",
    models="gpt-oss 20B and 120B",
    tools=Harmony(
        summary="`<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
        '{"a": 1}<|call|>`'
    ),
    reasoning_summary="`<|channel|>analysis<|message|>...<|end|>`",
    special_tokens=True,
    signs=(("<|channel|>", "<|message|>"),),
    model_types=("gpt_oss",),
    aliases=("harmony", "openai"),
)
