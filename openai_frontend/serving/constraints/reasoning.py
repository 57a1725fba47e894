"""The reasoning that may come before what an answer is held to."""

from openai_frontend.parsing.output_format import OutputFormat
from openai_frontend.serving.constraints import formats
from openai_frontend.serving.constraints.formats import Format, Unconstrainable


def reasoning_grammar(reading: OutputFormat, reasoning_open: bool | None) -> Format | None:
    """What the model may think, up to the marker after which it answers; None where it does not.

    A prompt that ends within reasoning has the model go on in it. After any other, a model that
    writes the start marker by itself may do so, or answer at once.
    """
    reasoning = reading.family.reasoning
    if reasoning is None:
        if reasoning_open and reading.reasoning:
            raise Unconstrainable("its reasoning parser does not say how reasoning ends")
        return None
    if reasoning_open is None:
        reasoning_open = reasoning.starts_inside
    if reasoning_open:
        begin = ""
    elif reasoning.starts_inside:  # and the prompt has ended it
        return None
    else:
        begin = reasoning.start
    thought = formats.tag(begin, formats.any_text(), reasoning.end)
    whole = formats.sequence(thought, formats.GAP)
    return whole if reasoning_open else formats.optional(whole)
