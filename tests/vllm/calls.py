"""Tool calls in a parser's events."""

from collections.abc import Sequence

from openai_frontend.parsing.events import Event, ToolCallArguments, ToolCallStart


def calls_of(events: Sequence[Event]) -> list[tuple[str, str]]:
    """Return the names and arguments of all calls."""
    names = {each.index: each.name for each in events if isinstance(each, ToolCallStart)}
    arguments = dict.fromkeys(names, "")
    for each in events:
        if isinstance(each, ToolCallArguments):
            arguments[each.index] += each.text
    return [(names[index], arguments[index]) for index in names]
