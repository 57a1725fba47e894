"""The calls of an answer that is held to be nothing but calls: an array of objects with a name and
parameters, or one such object.
"""

from openai_frontend.parsing.syntaxes.json_calls import JsonCalls

ANY_CALL = JsonCalls(
    summary='`[{"name": "f", "parameters": {"a": 1}}]`',
    separators=(),
    bare_starts=("[", "{"),
)
