"""Request fields that become chat template variables: effort, verbosity, and custom ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openai_frontend.serving.admission.model import ServingModel
from openai_frontend.serving.request.field_policy import FieldPolicy
from schemas.chat_completions import ChatCompletionRequest

# Field -> its values, from little to much
_SCALES: Mapping[str, Sequence[str]] = {
    "reasoning_effort": ("none", "minimal", "low", "medium", "high", "xhigh", "max"),
    "verbosity": ("low", "medium", "high"),
}
# The behaviour of a model whose template does not know the field.
_NEUTRAL = {"reasoning_effort": "none", "verbosity": "medium"}

# Templates' names of the switch that OpenAI's effort "none" turns off.
_THINKING = ("enable_thinking", "thinking")
IGNORED = "ignored"


@dataclass(frozen=True, slots=True)
class TemplateVariables:
    """Variables for the template, and the values that replace the request's own."""

    values: Mapping[str, Any]
    adjusted: Mapping[str, str] = field(default_factory=dict)  # field -> value, or IGNORED


def template_variables(
    request: ChatCompletionRequest, model: ServingModel, policy: FieldPolicy
) -> TemplateVariables:
    """Clamp effort and verbosity to what the template supports, unless the policy rejects that.

    Clients set these hints once for all models, and they guarantee nothing about the output.
    """
    values: dict[str, Any] = {}
    adjusted: dict[str, str] = {}
    for name in _SCALES:
        asked = getattr(request, name)
        if asked is None:
            continue
        used = _variables(name, asked, model)
        values |= used
        if used.get(name, asked) != asked:
            adjusted[name] = used[name]
        elif not used and asked != _NEUTRAL[name]:
            adjusted[name] = IGNORED
    for name, value in adjusted.items():
        policy.adjusted(name, value, model.name)
    return TemplateVariables(values | (request.chat_template_kwargs or {}), adjusted)


def _variables(name: str, asked: str, model: ServingModel) -> dict[str, Any]:
    if model.template_knows(name):
        return {name: _nearest(name, asked, model)}
    switches = _THINKING if name == "reasoning_effort" else ()
    return {switch: asked != "none" for switch in switches if model.template_knows(switch)}


def _nearest(name: str, asked: str, model: ServingModel) -> str:
    """The supported value nearest to the requested one."""
    scale = _SCALES[name]
    by_distance = sorted(scale, key=lambda each: abs(scale.index(each) - scale.index(asked)))
    return next((each for each in by_distance if model.template_accepts(name, each)), asked)
