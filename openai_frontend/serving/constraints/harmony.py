"""Grammars for Harmony, the format of gpt-oss.

All output is messages, and the constrained part is in one of them. The engine's stop token ends the
last message.
"""

from openai_frontend.parsing.output_format import OutputFormat
from openai_frontend.serving.constraints import formats
from openai_frontend.serving.constraints.calls import Functions
from openai_frontend.serving.constraints.formats import Format

_NEXT = "<|end|><|start|>assistant"
_FINAL = "<|channel|>final<|message|>"
# Reasoning, and text before a call.
_BEFORE = formats.star(
    formats.either(
        *(
            formats.tag(f"<|channel|>{channel}<|message|>", formats.any_text(), _NEXT)
            for channel in ("analysis", "commentary")
        )
    )
)
# The recipient follows the channel or, as the model was also trained, the role.
_CALLS = (
    "<|channel|>commentary to=functions.%s <|constrain|>json<|message|>",
    " to=functions.%s<|channel|>commentary <|constrain|>json<|message|>",
)


def frames(output_format: OutputFormat) -> bool:
    """Whether the model writes all its output as messages."""
    syntax = output_format.family.tools
    return syntax is not None and syntax.frames_output


def message(content: Format) -> Format:
    """The final message."""
    return formats.sequence(_BEFORE, formats.tag(_FINAL, content))


def calls(functions: Functions) -> Format:
    """One call: its end token ends the turn, so a second cannot follow."""
    return formats.sequence(_BEFORE, _call(functions))


def calls_or(functions: Functions, content: Format) -> Format:
    """One call, or else the final message."""
    last = formats.either(_call(functions), formats.tag(_FINAL, content))
    return formats.sequence(_BEFORE, last)


def _call(functions: Functions) -> Format:
    return formats.either(
        *(
            formats.tag(begin.replace("%s", name), arguments.form("json"))
            for name, arguments in functions.items()
            for begin in _CALLS
        )
    )
