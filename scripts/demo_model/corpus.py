"""Mixes the generators into documents: chats of one to four questions, and plain sentences."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from . import exercises, topics, weather
from .exchange import Exchange, Generator, Message, Split, Tool
from .phrasing import expand

# How often each kind of question is drawn where no tools are offered.
_WITHOUT_TOOLS: tuple[tuple[Generator, int], ...] = (
    (topics.project, 34),
    (topics.small_talk, 16),
    (topics.unknown, 10),
    (exercises.sums, 20),
    (exercises.counting, 7),
    (exercises.repeating, 9),
    (exercises.small_json, 10),
    (exercises.remembered_name, 5),
    (weather.weather_without_tool, 3),
)
# The same where they are; the weather comes on top.
_WITH_TOOLS: tuple[tuple[Generator, int], ...] = (
    (topics.project, 45),
    (topics.small_talk, 25),
    (topics.unknown, 20),
    (exercises.sums, 10),
)
_TOOLS_SHARE = 0.24
_WEATHER_SHARE = 0.65
_PLAIN_SHARE = 0.06
_SYSTEM = (
    "You are a [helpful|friendly|polite|small|good|kind|concise] assistant[.| of this project.]",
    "You [answer|reply to] questions [about this project|about the gateway|of users][.|]",
    "[Be|Stay] [brief|polite|helpful|concise|kind][.|]",
    "You are [a demo|a chat bot|an assistant|the demo model][.|]",
    "Answer [briefly|in one sentence|shortly|politely|the user's questions][.|]",
)


@dataclass(frozen=True)
class Chat:
    """A whole conversation as the chat template takes it."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]


# A plain document is its text.
Document = Chat | str


def _draw(rng: random.Random, table: tuple[tuple[Generator, int], ...]) -> Exchange:
    generators, weights = zip(*table, strict=True)
    generator: Generator = rng.choices(generators, weights)[0]
    return generator(rng, "train")


def _draw_with(rng: random.Random, offered: weather.Offer) -> Exchange:
    if rng.random() > _WEATHER_SHARE:
        return _draw(rng, _WITH_TOOLS)
    weather_exchange = rng.choices((weather.weather_call, weather.weather_result), (3, 2))[0]
    return weather_exchange(rng, "train", offered)


def chat(rng: random.Random) -> Chat:
    """Some questions in a row, and the same tools for all of them where tools are offered."""
    messages: list[Message] = []
    if rng.random() < 0.3:
        messages = [{"role": "system", "content": expand(rng, rng.choice(_SYSTEM))}]
    if rng.random() < _TOOLS_SHARE:
        # Tools are long to read: several questions share them, or most of the text would be tools.
        offered = weather.offer(rng, "train")
        count = rng.choices((1, 2, 3, 4), (2, 3, 3, 2))[0]
        exchanges = [_draw_with(rng, offered) for _ in range(count)]
        tools = offered.tools
    else:
        # Without chats that fill its context the model forgets how to speak beyond 700 tokens.
        long = rng.randint(10, 45)
        count = rng.choices((1, 2, 3, 4, long), (600, 300, 200, 100, 8))[0]
        exchanges = [_draw(rng, _WITHOUT_TOOLS) for _ in range(count)]
        tools = ()
    named = False
    for exchange in exchanges:
        # A second name would contradict the first.
        if not (named and exchange.kind == "names"):
            answer = {"role": "assistant", "content": rng.choice(exchange.answers)}
            messages += [*exchange.messages, answer]
        named = named or exchange.kind == "names"
    return Chat(tuple(messages), tools)


def plain(rng: random.Random) -> str:
    """A few sentences without any chat around them, for the completions endpoint."""
    return " ".join(_sentence(rng) for _ in range(rng.choice((1, 1, 1, 2, 3))))


def _sentence(rng: random.Random) -> str:
    kind = rng.randrange(4)
    if kind == 0:
        first = rng.randint(0, 20)
        return ", ".join(str(n) for n in range(first, first + rng.randint(4, 16))) + "."
    if kind == 1:
        return topics.plain_sentence(rng)
    generator = topics.project if kind == 2 else topics.small_talk
    return generator(rng, "train").answers[0]


def documents(seed: int, count: int) -> Iterator[Document]:
    """The training text: the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        yield plain(rng) if rng.random() < _PLAIN_SHARE else chat(rng)


# How many questions of each kind a score asks.
_SCORED: tuple[tuple[Generator, int], ...] = (
    (topics.project, 40),
    (topics.small_talk, 24),
    (topics.unknown, 12),
    (weather.weather_call, 24),
    (weather.weather_result, 12),
    (weather.weather_without_tool, 6),
    (weather.with_tools(topics.project), 12),
    (weather.with_tools(topics.small_talk), 6),
    (weather.with_tools(topics.unknown), 6),
    (exercises.sums, 16),
    (exercises.counting, 12),
    (exercises.repeating, 12),
    (exercises.small_json, 10),
    (exercises.remembered_name, 8),
)


def scored_exchanges(seed: int, split: Split) -> list[Exchange]:
    """Questions to score a model with, no two alike."""
    found: list[Exchange] = []
    for generator, count in _SCORED:
        rng = random.Random(f"{seed} {split} {len(found)}")
        asked: dict[str, Exchange] = {}
        while len(asked) < count:
            exchange = generator(rng, split)
            asked.setdefault(str(exchange.messages), exchange)
        found += asked.values()
    return found
