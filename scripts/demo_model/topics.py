"""Questions with a fixed answer, from ``topics.toml``, and some that the model cannot answer."""

import random
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from .exchange import Exchange, Generator, Split, question
from .phrasing import expand, vary

UNKNOWN_ANSWER = (
    "I do not know that. I am a tiny demo model and only know a little about this project."
)


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("topics.toml").read_text("utf-8"))


def topic_names(section: str) -> list[str]:
    """The topics of a section, in the order of the file."""
    return list(_tables()[section])


def held_out(section: str, name: str) -> list[str]:
    """The questions about this topic that are only used to score a model."""
    return list(_tables()[section][name]["held_out"])


def topic(section: str, name: str, rng: random.Random, split: Split) -> Exchange:
    """A question about this topic in one of its phrasings."""
    entry = _tables()[section][name]
    if split == "held_out":
        return question(section, rng.choice(entry["held_out"]), *entry["answers"])
    pattern = rng.choice(entry["phrasings"])
    text = vary(rng, expand(rng, pattern, _tables()["fragments"]))
    return question(section, text, *entry["answers"])


def _any_topic(section: str) -> Generator:
    def ask(rng: random.Random, split: Split) -> Exchange:
        return topic(section, rng.choice(topic_names(section)), rng, split)

    return ask


def unknown(rng: random.Random, split: Split) -> Exchange:
    """A question about the wide world."""
    table = _tables()["unknown"]
    if split == "held_out":
        return question("unknown", rng.choice(table["held_out"]), UNKNOWN_ANSWER)
    pattern = rng.choice(table["phrasings"])
    return question("unknown", vary(rng, expand(rng, pattern, table["fragments"])), UNKNOWN_ANSWER)


def plain_sentence(rng: random.Random) -> str:
    """A statement about this project that answers no question."""
    sentence: str = rng.choice(_tables()["plain"]["sentences"])
    return sentence


project = _any_topic("project")
small_talk = _any_topic("small_talk")
