"""Request fields that are variables of a chat template: effort, verbosity, the request's own."""

from collections.abc import Callable
from typing import Any

from openai_frontend.models.served_model import ServedModel
from openai_frontend.serving.sampling import unsupported
from schemas.chat_completions import ChatCompletionRequest

# What templates call the switch that OpenAI's effort "none" turns off.
_THINKING = ("enable_thinking", "thinking")


def template_variables(request: ChatCompletionRequest, model: ServedModel) -> dict[str, Any]:
    """What the template gets; raises for a field that it does not know."""
    variables: dict[str, Any] = {}
    if request.reasoning_effort is not None:
        variables.update(_effort(request.reasoning_effort, model.template_knows))
    if request.verbosity is not None:
        variables.update(_verbosity(request.verbosity, model.template_knows))
    return variables | (request.chat_template_kwargs or {})


def _effort(effort: str, knows: Callable[[str], bool]) -> dict[str, Any]:
    if knows("reasoning_effort"):
        return {"reasoning_effort": effort}
    switches = [name for name in _THINKING if knows(name)]
    if not switches and effort != "none":  # a model that does not reason has none
        raise unsupported("reasoning_effort")
    return dict.fromkeys(switches, effort != "none")


def _verbosity(verbosity: str, knows: Callable[[str], bool]) -> dict[str, Any]:
    if knows("verbosity"):
        return {"verbosity": verbosity}
    if verbosity != "medium":  # OpenAI's default
        raise unsupported("verbosity")
    return {}
