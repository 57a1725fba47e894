"""Structural tags as Lark grammars for llguidance, which enforces schemas that xgrammar cannot.

Parts that are regular become one terminal together, because llguidance reads each terminal as far
as it can: `a*` before `ab` would take the `a`.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from openai_frontend.engines.vllm.grammars.regex_search import Search, whole_texts
from openai_frontend.engines.vllm.grammars.regex_text import for_llguidance
from openai_frontend.engines.vllm.grammars.regex_tree import Node

# First line of every grammar for llguidance. Without it, llguidance reads ahead while only one text
# may follow, and never returns if that text has no end: `start: x`, `x: "a" x`.
HEADER = '%llguidance {"no_forcing": true}\n'
_ANY = "(?s:.*)"


_DECODER = json.JSONDecoder()
# In a Lark grammar: what precedes JSON, an attribute of a rule that changes more than its text, a
# comment, a string, an expression with its flags
_TOKEN = re.compile(
    r"(?P<schema>%json\b\s*)|(?P<options>%llguidance\b\s*)"
    r"|\b(?P<attribute>temperature|max_tokens|stop|stop_capture)\s*="
    r'|(?://|#)[^\n]*|"(?:\\.|[^"\\\n])*+"?'
    r"|/(?P<pattern>(?:\\.|[^/\\\n])++)/(?P<flags>[imslux]*)"
)
_STATEMENT = re.compile(
    r"^[ \t]*(?:(?P<imported>%import\b)|%\w+|(?P<terminal>_?[A-Z][A-Z0-9_]*)[ \t]*:"
    r"|[?!]?\w[^:|\n]*:)",
    re.MULTILINE,
)
_OPERATOR = re.compile("[&~]")
SCHEMA = "schema_"  # begins the names of schemas in a grammar for xgrammar

# Added tokens that are special, or of this form, are not text for llguidance.
TAG_TOKEN = re.compile(r"<.*>", re.DOTALL)


class NotConvertible(ValueError):
    """llguidance cannot express this part of a structural tag."""


@dataclass(frozen=True, slots=True)
class _Expression:
    text: str
    regular: bool  # it can be a part of a terminal


_NO_TEXT = _Expression("/(?:)/", True)  # `//` begins a comment


def grammar_of_schema(schema: Any) -> str:
    """The grammar of a schema that is prepared for llguidance."""
    return f"{HEADER}start: {json_of(schema)}\n"


def grammar_of_trees(trees: Iterable[Node]) -> str:
    """The grammar of texts that match all of these expressions."""
    return f"{HEADER}start: TEXT\nTEXT: {_all(trees)}\n"


class LarkDialect(NamedTuple):
    """How an engine's Lark has the parts that engines read differently."""

    schema: Callable[[Any], str]  # for `%json` and its schema
    expression: Callable[[Node], str]


class RewrittenLark(NamedTuple):
    text: str
    changed: bool  # the grammar has schemas or expressions


def rewritten(grammar: str, dialect: LarkDialect) -> RewrittenLark:
    """A client's grammar in an engine's dialect. Raises ValueError for what is not supported."""
    written, end, changed = [], 0, False
    while (found := _TOKEN.search(grammar, end)) is not None:
        written.append(grammar[end : found.start()])
        end = found.end()
        if found["schema"]:
            schema, end = _json_at(grammar, end)
            written.append(dialect.schema(schema))
        elif found["options"]:
            options, end = _json_at(grammar, end)
            if options != {}:
                raise ValueError("options of '%llguidance' are not supported")
        elif found["attribute"]:
            line = grammar.count("\n", 0, found.start()) + 1
            raise ValueError(f"line {line}: '{found['attribute']}' is not supported in Lark")
        elif found["pattern"]:
            written.append(_spelled(found["pattern"], found["flags"], dialect))
        else:
            written.append(found[0])
        changed |= bool(found["schema"] or found["pattern"])
    return RewrittenLark(f"{''.join(written)}{grammar[end:]}", changed)


def terminals_with_operators(grammar: str) -> Iterator[tuple[str, str]]:
    """The name of each terminal of a client's grammar that has `&` or `~`, which may leave it no
    text, and the grammar of this terminal alone.
    """
    # Nothing within strings, expressions and comments is a name or an operator
    masked = _TOKEN.sub(lambda found: "." * len(found[0]), grammar)
    begins = list(_STATEMENT.finditer(masked))
    ends = [each.start() for each in begins[1:]] + [len(grammar)]
    spans = [
        (found["terminal"], slice(found.start(), end))
        for found, end in zip(begins, ends, strict=True)
        if found["terminal"] or found["imported"]
    ]
    definitions = "".join(f"{grammar[span].rstrip()}\n" for _, span in spans)
    for name, span in spans:
        if name and _OPERATOR.search(masked[span]):
            yield name, f"{HEADER}start: {name}\n{definitions}"


def _json_at(grammar: str, at: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(grammar, at)
    except ValueError as error:
        raise ValueError(f"JSON must follow '%json' and '%llguidance': {error}") from None


def _spelled(pattern: str, flags: str, dialect: LarkDialect) -> str:
    try:
        trees = whole_texts(f"(?{flags}){pattern}" if flags else pattern, Search.WHOLE)
        if len(trees) > 1:
            raise ValueError("a lookahead is not supported")
        return f"/{dialect.expression(trees[0])}/"
    except ValueError as error:
        raise ValueError(f"the expression /{pattern[:64]}/: {error}") from None


def grammar_of_tag(form: Mapping[str, Any], special_tokens: Mapping[str, int]) -> str:
    """The grammar of a structural tag's format, with schemas that are prepared for llguidance.
    Special tokens in the tag's texts become their numbers. Raises NotConvertible.
    """
    writer = _Writer(special_tokens)
    try:
        start = writer.rule(writer.of(form))
    except (AttributeError, KeyError, TypeError) as error:  # xgrammar reports what is wrong
        raise NotConvertible("a structural tag that is incomplete") from error
    return f"{HEADER}start: {start}\n" + "\n".join(writer.lines) + "\n"


class _Writer:
    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        self.lines: list[str] = []
        self._special = special_tokens
        longest_first = sorted(special_tokens, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    def of(self, form: Any) -> _Expression:
        """The expression of a part of a structural tag."""
        kind = form.get("type") if isinstance(form, Mapping) else None
        write = _KINDS.get(kind) if isinstance(kind, str) else None
        if write is None:
            raise NotConvertible(f"a structural tag's {str(kind)[:64]!r}")
        return write(self, form)

    def rule(self, expression: _Expression) -> str:
        """The name of a rule, or of a terminal, with this expression."""
        name = f"T{len(self.lines)}" if expression.regular else f"r{len(self.lines)}"
        self.lines.append(f"{name}: {expression.text}")
        return name

    def literal(self, text: str) -> _Expression:
        parts = self._split.split(text) if self._special else [text]
        return self.sequence([
            _Expression(f"<[{self._special[each]}]>", False)
            if each in self._special
            else _regular(_literal_text(each))
            for each in parts
            if each
        ])  # fmt: skip

    def sequence(self, parts: Sequence[_Expression]) -> _Expression:
        """Adjacent regular parts become one terminal."""
        joined: list[_Expression] = []
        for part in parts:
            if part == _NO_TEXT:
                continue
            if joined and part.regular and joined[-1].regular:
                joined[-1] = _Expression(f"{joined[-1].text} {part.text}", True)
            else:
                joined.append(part)
        if not joined:
            return _NO_TEXT
        if len(joined) == 1:
            return joined[0]
        return _Expression(" ".join(map(self._in_rule, joined)), False)

    def choice(self, options: Sequence[_Expression]) -> _Expression:
        if all(each.regular for each in options):
            return _Expression(f"({' | '.join(each.text for each in options)})", True)
        return _Expression(f"({' | '.join(map(self._in_rule, options))})", False)

    def repeated(self, part: _Expression, sign: str) -> _Expression:
        return _Expression(
            f"({part.text}){sign}" if part.regular else f"{self.rule(part)}{sign}", part.regular
        )

    def _in_rule(self, part: _Expression) -> str:
        return self.rule(part) if part.regular else part.text

    def text(self, *, without: Sequence[str], most: int | None = None) -> _Expression:
        """Any text that has none of these in it."""
        limit = "" if most is None else f" & /(?s:.{{0,{most}}})/"
        return _regular(f"(/{_ANY}/{_lacking(without)}{limit})", bare=True)

    def up_to(self, end: str, without: Sequence[str]) -> _Expression:
        """Text up to the first occurrence of the end, which follows."""
        first, *rest = self._split.split(end) if self._special else [end]
        if not first and rest:  # a special token, which no text contains
            return self.sequence([self.text(without=[*without, end]), self.literal(end)])
        ended = _literal_text(first)
        text = f"(/{_ANY}{ended}/ & ~/{_ANY}{ended}(?s:.+)/{_lacking(without)})"
        return self.sequence([_regular(text, bare=True), self.literal("".join(rest))])


def _regular(text: str, *, bare: bool = False) -> _Expression:
    return _Expression(text if bare else f"/{text}/", True)


def _literal_text(text: str) -> str:
    return "".join(
        each if each.isascii() and each.isalnum() else rf"\x{{{ord(each):x}}}" for each in text
    )


def json_of(schema: Any) -> str:
    """The schema in a grammar. vLLM takes a grammar with `::=` for EBNF."""
    return f"%json {json.dumps(schema)}".replace("::=", "\\u003a:=")


def _schema(schema: Any) -> _Expression:
    if schema is None:
        raise NotConvertible("a schema that llguidance cannot enforce")
    return _Expression(json_of(schema), False)


def _lacking(texts: Sequence[str]) -> str:
    return "".join(f" & ~/{_ANY}{_literal_text(each)}{_ANY}/" for each in texts)


def _regex(pattern: str) -> str:
    return _all(whole_texts(pattern, Search.WHOLE))


def _all(trees: Iterable[Node]) -> str:
    written = [f"/(?:{for_llguidance(tree)})/" for tree in trees]
    return f"({' & '.join(written)})"


def _tag(writer: _Writer, form: Mapping[str, Any]) -> _Expression:
    begin, end = form.get("begin"), form.get("end")
    if not isinstance(begin, str) or not isinstance(end, str):
        raise NotConvertible("a structural tag's 'tag' with tokens")
    return writer.sequence([writer.literal(begin), *_ended(writer, form.get("content"), end)])


def _ended(writer: _Writer, content: Any, end: str) -> list[_Expression]:
    if end and isinstance(content, Mapping) and content.get("type") == "any_text":
        if content.get("max_chars") is None and content.get("max_tokens") is None:
            return [writer.up_to(end, content.get("excludes") or ())]
        raise NotConvertible("limited text before the end of a tag")
    return [writer.of(content), writer.literal(end)]


def _any_text(writer: _Writer, form: Mapping[str, Any]) -> _Expression:
    if form.get("max_tokens") is not None:
        raise NotConvertible("'max_tokens' of a structural tag's text")
    return writer.text(without=form.get("excludes") or (), most=form.get("max_chars"))


def _listed(writer: _Writer, form: Mapping[str, Any]) -> _Expression:
    tags = writer.choice([_tag(writer, each) for each in form["tags"]])
    whole = tags
    if not form.get("stop_after_first"):
        name = writer.rule(_Expression(tags.text, False) if not tags.regular else tags)
        after = writer.sequence([writer.literal(form["separator"]), _Expression(name, False)])
        whole = writer.sequence([_Expression(name, False), writer.repeated(after, "*")])
    return whole if form.get("at_least_one") else writer.repeated(whole, "?")


def _triggered(writer: _Writer, form: Mapping[str, Any]) -> _Expression:
    """Text, in which a trigger begins one of its tags."""
    excludes, triggers = form.get("excludes") or [], form["triggers"]
    calls = []
    for trigger in triggers:
        before = writer.up_to(trigger, [*excludes, *(each for each in triggers if each != trigger)])
        rests = [
            writer.sequence([
                writer.literal(tag["begin"].removeprefix(trigger)),
                *_ended(writer, tag["content"], tag["end"]),
            ])
            for tag in form["tags"]
            if tag["begin"].startswith(trigger)
        ]  # fmt: skip
        calls.append(writer.sequence([before, writer.choice(rests)]))
    call = writer.choice(calls)
    text = writer.text(without=[*excludes, *triggers])
    if form.get("stop_after_first"):
        return call if form.get("at_least_one") else writer.choice([call, text])
    return writer.sequence([writer.repeated(call, "+" if form.get("at_least_one") else "*"), text])


_KINDS: Mapping[str, Callable[[_Writer, Mapping[str, Any]], _Expression]] = {
    "const_string": lambda writer, form: writer.literal(form["value"]),
    "json_schema": lambda _, form: _schema(form["json_schema"]),
    "regex": lambda _, form: _regular(_regex(form["pattern"]), bare=True),
    "any_text": _any_text,
    "sequence": lambda writer, form: writer.sequence(list(map(writer.of, form["elements"]))),
    "or": lambda writer, form: writer.choice(list(map(writer.of, form["elements"]))),
    "optional": lambda writer, form: writer.repeated(writer.of(form["content"]), "?"),
    "star": lambda writer, form: writer.repeated(writer.of(form["content"]), "*"),
    "plus": lambda writer, form: writer.repeated(writer.of(form["content"]), "+"),
    "tag": _tag,
    "tags_with_separator": _listed,
    "triggered_tags": _triggered,
}
