"""Harmony, the format of gpt-oss, as a grammar: all output is messages, so what an answer is held
to stands in one of them. The engine's stop token ends the last one.
"""

from openai_frontend.parsing.output_format import OutputFormat
from openai_frontend.serving.constraints import formats
from openai_frontend.serving.constraints.calls import Functions
from openai_frontend.serving.constraints.formats import Format

_NEXT = "<|end|><|start|>assistant"
_FINAL = "<|channel|>final<|message|>"
# Thoughts, and what is said before a call.
_BEFORE = formats.star(
    formats.either(
        *(
            formats.tag(f"<|channel|>{channel}<|message|>", formats.any_text(), _NEXT)
            for channel in ("analysis", "commentary")
        )
    )
)
# The recipient stands behind the channel or, as the model was taught too, behind the role.
_CALLS = (
    "<|channel|>commentary to=functions.%s <|constrain|>json<|message|>",
    " to=functions.%s<|channel|>commentary <|constrain|>json<|message|>",
)


def frames(reading: OutputFormat) -> bool:
    """Whether this model writes all its output in messages."""
    syntax = reading.family.tools
    return syntax is not None and syntax.frames_output


def message(content: Format) -> Format:
    """The answer itself."""
    return formats.sequence(_BEFORE, formats.tag(_FINAL, content))


def calls(functions: Functions) -> Format:
    """One call: the token that ends it ends the turn, so there is never a second."""
    return formats.sequence(_BEFORE, _call(functions))


def calls_or(functions: Functions, content: Format) -> Format:
    """One call, or else the answer."""
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
