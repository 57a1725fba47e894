"""The small grammar of questions, and the ways in which people write one and the same question."""

import random
import re
from collections.abc import Mapping

_INNERMOST = re.compile(r"\[([^\[\]]*)\]")
_FRAGMENT = re.compile(r"<(\w+)>")
_ASKS = re.compile(r"(what|which|how|where|who|why|when|is|are|can|could|do|does|may|will)\b", re.I)
_OPENINGS = (
    *("Hi! ", "Hello, ", "Hey, ", "Please tell me: ", "Quick question: ", "So, ", "OK. "),
    *("Excuse me, ", "I have a question. ", "One more question: ", "Now tell me: "),
    *("I wonder: ", "Well, ", "Sorry, "),
)
_CLOSINGS = (" Thanks.", " Thank you!", " please", " Please be brief.", " Just curious.")


def expand(rng: random.Random, pattern: str, fragments: Mapping[str, str] | None = None) -> str:
    """Write a pattern out: ``<name>`` is a fragment, ``[a|b|c]`` one of its alternatives."""
    if fragments:
        pattern = _FRAGMENT.sub(lambda match: fragments[match[1]], pattern)
    while "[" in pattern:
        pattern = _INNERMOST.sub(lambda match: rng.choice(match[1].split("|")), pattern)
    if pattern.endswith(".") and _ASKS.match(pattern):
        return pattern[:-1] + "?"
    return pattern


def vary(rng: random.Random, text: str) -> str:
    """Write a question as people do: with a greeting, in lower case, without its question mark."""
    if rng.random() < 0.12:
        text = text.rstrip("?.!") or text
    if rng.random() < 0.12:
        text = text[0].lower() + text[1:]
    if rng.random() < 0.15:
        text = rng.choice(_OPENINGS) + text
    if rng.random() < 0.06:
        text += rng.choice(_CLOSINGS)
    return text
