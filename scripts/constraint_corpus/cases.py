"""The corpus: each pattern and each schema in each place of a request that takes it."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import regex

from openai_frontend.serving.request.tools import CustomFormat, Tools
from scripts.constraint_corpus.client_schemas import as_property, client_schemas
from scripts.constraint_corpus.ecma import compiled
from scripts.constraint_corpus.keyword_schemas import keyword_schemas
from scripts.constraint_corpus.metaschema import random_schemas
from scripts.constraint_corpus.oracle import violation
from scripts.constraint_corpus.patterns import patterns
from tests.vllm.constrained_answers import offered
from tests.vllm.published_schemas import cases as published

Place = Literal[
    "response_format",
    "response_format, not strict",
    "strict tool",
    "tool, not strict",
    "structured_outputs.regex",
    "custom tool",
]
SCHEMA_PLACES: tuple[Place, ...] = (
    "response_format",
    "response_format, not strict",
    "strict tool",
    "tool, not strict",
)
PATTERN_PLACES: tuple[Place, ...] = (
    "response_format",
    "strict tool",
    "structured_outputs.regex",
    "custom tool",
)
ENFORCED_PLACES: tuple[Place, ...] = ("response_format", "strict tool", "custom tool")


@dataclass(frozen=True, slots=True)
class Case:
    """A schema or a pattern in one place of a request."""

    group: str
    name: str
    place: Place
    schema: Any  # of the response or of the arguments
    pattern: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.group, self.name, self.place

    @property
    def called(self) -> bool:
        """Whether the answer is a call's arguments."""
        return self.place.endswith("tool") or self.place == "tool, not strict"

    def fields(self) -> dict[str, Any]:
        """The request's fields that constrain the answer."""
        if self.place == "structured_outputs.regex":
            return {"structured_outputs": {"regex": self.pattern}}
        strict = {} if self.place.endswith("not strict") else {"strict": True}
        if not self.called:
            form = {"name": "x", "schema": self.schema, **strict}
            return {"response_format": {"type": "json_schema", "json_schema": form}}
        kind, tool = "function", {"name": "f", "parameters": self.schema, **strict}
        if self.place == "custom tool":
            grammar = {"syntax": "regex", "definition": self.pattern}
            kind, tool = "custom", {"name": "f", "format": {"type": "grammar", "grammar": grammar}}
        return {
            "tools": [{"type": kind, kind: tool}],
            "tool_choice": {"type": kind, kind: {"name": "f"}},
        }

    def tools(self) -> Tools:
        """The same tools, validated."""
        if self.place == "custom tool":
            form = CustomFormat(type="grammar", syntax="regex", definition=self.pattern)
            place = {"f": "tools[0].custom.format"}
            functions = {"f": {"type": "object"}}
            return offered(functions, custom={"f": form}, places=place, strict=frozenset())
        strict = frozenset("f") if self.place == "strict tool" else frozenset()
        return offered({"f": self.schema}, strict=strict)

    def violation(self, answer: str) -> str:
        """What is wrong with an answer, or a call's arguments; empty if nothing is."""
        if self.place == "structured_outputs.regex":
            return _mismatch(self.pattern, answer)
        if self.place == "custom tool":
            return violation({"type": "object"}, answer) or self._custom(json.loads(answer))
        if self.place.endswith("not strict"):
            return violation({"type": "object"} if self.called else {}, answer)
        return violation(self.schema, answer)

    def _custom(self, arguments: Mapping[str, Any]) -> str:
        text = arguments.get("input")
        return _mismatch(self.pattern, text) if isinstance(text, str) else f"no text: {arguments}"


def _mismatch(pattern: str, text: str) -> str:
    try:
        found = compiled(pattern).search(text)
    except regex.error as error:
        return f"no validator: {error}"
    return "" if found else f"{text!r} does not match {pattern!r}"


def cases(seed: int) -> Iterator[Case]:
    """The whole corpus."""
    for number, pattern in enumerate(patterns(seed)):
        schema = as_property({"type": "string", "pattern": pattern})
        for place in PATTERN_PLACES:
            yield Case("patterns", f"pattern {number}", place, schema, pattern)
    groups: Mapping[str, Iterator[tuple[str, Any]]] = {
        "clients": client_schemas(seed),
        "keywords": keyword_schemas(seed),
        "metaschema": random_schemas(seed),
        "published": ((case.name, case.arguments()) for case in published()),
    }
    for group, schemas in groups.items():
        for name, schema in schemas:
            yield from (Case(group, name, place, schema) for place in SCHEMA_PLACES)


def sample(corpus: Iterable[Case], every: int) -> list[Case]:
    """Each `every`-th schema or pattern, in all its places."""
    names: dict[tuple[str, str], int] = {}
    return [
        case
        for case in corpus
        if names.setdefault((case.group, case.name), len(names)) % every == 0
    ]


def half(corpus: Iterable[Case]) -> list[Case]:
    """Each pattern and each third schema, in the places of OpenAI's API that must enforce it."""
    enforced = [case for case in corpus if case.place in ENFORCED_PLACES]
    schemas = [case for case in enforced if case.group != "patterns"]
    return [case for case in enforced if case.group == "patterns"] + sample(schemas, 3)
