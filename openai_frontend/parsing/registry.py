"""Selects the family of a model: by name, or from its chat template and config, with the evidence.
Reads no files.
"""

from dataclasses import dataclass, replace

from openai_frontend.parsing.family import TAKES_TOOLS, TEXT, Family
from openai_frontend.parsing.formats import (
    deepseek,
    harmony,
    json_calls,
    key_values,
    named_json,
    nested_tags,
    python_calls,
)

# The first family whose signs are in the template is selected, so more specific ones come first.
FAMILIES: tuple[Family, ...] = (
    harmony.GPT_OSS,
    key_values.MUSE_GLIMMER,
    key_values.KIMI_K3,
    key_values.SEED_OSS,
    key_values.QWEN3_CODER,
    key_values.QWEN3_XML,
    key_values.MIMO,
    named_json.LLAMA_FUNCTION_TAG,
    key_values.LONGCAT,
    key_values.HY_V3,
    key_values.HY_V4,
    key_values.GLM45,
    nested_tags.MINIMAX_M3,
    key_values.MINIMAX_M2,
    deepseek.V32,
    deepseek.V4,
    deepseek.R1,
    deepseek.V3,
    deepseek.V31,
    named_json.KIMI_K2,
    named_json.MISTRAL,
    named_json.GEMMA4,
    named_json.FUNCTION_GEMMA,
    json_calls.GRANITE,
    json_calls.NEMOTRON,
    json_calls.PHI4,
    json_calls.COMMAND_R7B,
    json_calls.INTERNLM,
    json_calls.JAMBA,
    json_calls.GRANITE_20B_FC,
    python_calls.LLAMA4_PYTHONIC,
    python_calls.PYTHONIC,
    python_calls.OLMO3,
    python_calls.LFM2,
    json_calls.APERTUS,
    json_calls.GIGACHAT3,
    json_calls.ERNIE45,
    json_calls.QWEN3,
    json_calls.HERMES,
    json_calls.LLAMA3_JSON,
    json_calls.THINK_ONLY,
    json_calls.GENERIC_JSON,
    TEXT,
)
BY_NAME = {name: family for family in FAMILIES for name in (family.name, *family.aliases)}


@dataclass(frozen=True, slots=True)
class FamilyMatch:
    """A family and the evidence for it, one sentence each."""

    family: Family
    evidence: tuple[str, ...]


def family_for(chat_template: str | None, model_type: str | None = None) -> FamilyMatch:
    """Detect the family.

    The template decides, because it is what the model sees; then the config's `model_type`, unless
    the template shows that the model gets no tools.
    """
    template = chat_template or ""
    for family in FAMILIES:
        signs = _signs_in(template, family)
        if signs:
            return FamilyMatch(
                family, tuple(f"The chat template contains {sign!r}." for sign in signs)
            )
    if template and not supports_tools(template):
        return FamilyMatch(TEXT, ("The chat template neither supports tools nor marks reasoning.",))
    shows_nothing = ("The chat template supports tools but shows no known call syntax.",)
    unknown = shows_nothing if template else ("There is no chat template.",)
    for family in FAMILIES:
        if model_type in family.model_types:
            return FamilyMatch(family, (*unknown, f"The config has model_type {model_type!r}."))
    return FamilyMatch(json_calls.GENERIC_JSON if template else TEXT, unknown)


def missing_tool_support(family: Family, chat_template: str | None, *, recognised: bool) -> str:
    """Why tool calls will not work or are limited; "" if they work."""
    if not recognised:
        return "Tool calls are not recognised."
    if chat_template and not supports_tools(chat_template):
        return "The chat template does not show tools to the model, so it will not call any."
    if family is json_calls.GENERIC_JSON:
        return "Tool calls are recognised only as JSON that names an offered tool."
    return ""


def missing_reasoning_support(*, recognised: bool) -> str:
    """Why reasoning will not be separated; "" if it will."""
    return (
        ""
        if recognised
        else "Reasoning, if the model writes any, is not separated from the answer."
    )


def supports_tools(template: str) -> bool:
    """Whether the chat template shows tools to the model."""
    return any(text in template for text in TAKES_TOOLS)


def _signs_in(template: str, family: Family) -> tuple[str, ...]:
    if any(text in template for text in family.without):
        return ()
    return next((all_of for all_of in family.signs if all(s in template for s in all_of)), ())


def is_inseparable(family: Family) -> bool:
    """Whether calls and reasoning are one syntax, which cannot be split."""
    return family.tools is not None and family.tools.frames_output


def combined(tools: Family, reasoning: Family) -> Family:
    """One family's calls with another's reasoning. ValueError if one of them is inseparable."""
    if tools is reasoning:
        return tools
    for family in (tools, reasoning):
        if is_inseparable(family):
            raise ValueError(f"'{family.name}' parses tool calls and reasoning together")
    names = [tools.name] if tools.tools else []
    names += [reasoning.name] if reasoning.reasoning else []
    if not names:
        return TEXT
    return replace(
        tools,
        name="+".join(dict.fromkeys(names)),
        reasoning=reasoning.reasoning,
        special_tokens=tools.special_tokens or reasoning.special_tokens,
        endings=tuple(dict.fromkeys(tools.endings + reasoning.endings)),
    )
