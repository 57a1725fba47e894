"""Documentation, help texts and messages avoid the words of a list.

A failure names the text and the replacement.
"""

import argparse
import ast
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest

from openai_frontend.cli.parser import parser
from openai_frontend.config.model_options import ModelOptions
from openai_frontend.config.settings import Settings
from openai_frontend.metrics import catalog, vllm
from tests.gateway_process import ROOT

# Pattern -> replacement
WORDS = {
    r"(?<!there )\b(?:is|are|was|were) no (?!longer\b|more\b|better\b)": "is not a, has no",
    r"(?<!there )\b(?:is|are) (?-i:none)\b(?! of\b)": "is not one, is missing",
    r"\btold\b": "returned, reported, set",
    r"\btells? of\b": "reports",
    r"\bwhoever\b": "anyone who, clients that",
    r"\bnobody\b": "no client, no one, unknown",
    r"\boverheard\b": "ignored",
    r"\bgo(?:es)? on\b": "continues",
    r"\bwent on\b": "continued",
    r"(?<!as it )\bstands\b": "is, appears",
    r"\bat work\b": "running",
    r"\bfor ever\b": "forever; 0 disables the limit",
    r"\banew\b": "again",
    r"\bmend(?:ed|s)?\b": "fix, recover",
    r"\btaken up\b": "applied",
    r"\bsome \d": "about",
    r"\bnot whole\b": "incomplete",
    r"(?:^|[.] )(?-i:Where) (?!to\b|there is|the \w+ is\b)": "if",
    r"\b(?:gave|gives?|given) back\b": "release, return",
    r"\bturns? by key\b": "fair between keys",
}
BANNED = {re.compile(pattern, re.IGNORECASE): advice for pattern, advice in WORDS.items()}

PACKAGES = ("openai_frontend", "schemas", "chat_templates")

# Sources of texts that are not rewritten yet: paths of the package, settings and options by name.
NOT_YET_CLEAN: set[str] = set()

LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}


class Text(NamedTuple):
    source: str
    text: str


def pages() -> Iterator[Text]:
    """Prose of the documentation, without code."""
    paths = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("[A-Z]*.md")]
    for path in sorted(paths):
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        text = re.sub(r"`[^`\n]*`", "`", text)
        yield from (Text(str(path.relative_to(ROOT)), line) for line in text.splitlines())


def help_texts() -> Iterator[Text]:
    waiting: list[tuple[str, argparse.ArgumentParser]] = [("openai-frontend", parser())]
    while waiting:
        name, command = waiting.pop()
        yield Text(f"{name} --help", command.description or "")
        for action in command._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += [
                    (f"{name} {sub}", each) for sub, each in action._name_parser_map.items()
                ]
            yield Text(f"{name} {action.dest}", action.help or "")


def field_texts() -> Iterator[Text]:
    for model in (Settings, ModelOptions):
        for name, field in model.model_fields.items():
            yield Text(f"{model.__name__}.{name}", field.description or "")


def metric_texts() -> Iterator[Text]:
    for spec in (*catalog.ALL, *vllm.ALL):
        yield Text(f"metric {spec.name}", spec.help)
        yield Text(f"metric {spec.name}", spec.runbook)


def messages() -> Iterator[Text]:
    """String literals in `raise` statements and log calls of the package."""
    for path in sorted((ROOT / "openai_frontend").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if is_message(node):
                source = str(path.relative_to(ROOT))
                yield from (Text(source, literal) for literal in literals(node))


def is_message(node: ast.AST) -> bool:
    match node:
        case ast.Raise(exc=ast.Call()):
            return True
        case ast.Call(func=ast.Attribute(attr=name), args=[_, *_]):
            return name in LOG_METHODS
    return False


def literals(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def package_files() -> list[Path]:
    return sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))


def docstrings() -> Iterator[Text]:
    documentable = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in package_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, documentable) and (text := ast.get_docstring(node)) is not None:
                yield Text(str(path.relative_to(ROOT)), " ".join(text.split()))


def comments() -> Iterator[Text]:
    """Comments of the package, and of `native/`."""
    for path in package_files():
        with tokenize.open(path) as file:
            tokens = list(tokenize.generate_tokens(file.readline))
        found = [(*each.start, each.string) for each in tokens if each.type == tokenize.COMMENT]
        yield from blocks(path, found)
    for path in sorted((ROOT / "native").glob("*.[ch]*")):
        lines = enumerate(path.read_text(encoding="utf-8").splitlines())
        found = [(row, line.find("//"), line.partition("//")[2]) for row, line in lines]
        yield from blocks(path, [each for each in found if each[1] >= 0])


def blocks(path: Path, found: list[tuple[int, int, str]]) -> Iterator[Text]:
    """Comments of neighbouring lines that begin in the same column are one text."""
    for _, lines in groupby(enumerate(found), key=lambda each: (each[1][0] - each[0], each[1][1])):
        text = " ".join(line.lstrip("#/ ") for _, (_, _, line) in lines)
        yield Text(str(path.relative_to(ROOT)), text)


SOURCES = {
    "pages": pages,
    "help": help_texts,
    "fields": field_texts,
    "metrics": metric_texts,
    "messages": messages,
    "docstrings": docstrings,
    "comments": comments,
}


@cache
def texts_of(name: str) -> Sequence[Text]:
    """Reading comments takes seconds."""
    return list(SOURCES[name]())


def hits(texts: Iterable[Text]) -> Iterator[str]:
    for source, text in texts:
        for pattern, advice in BANNED.items():
            if source not in NOT_YET_CLEAN and (match := pattern.search(text)):
                yield f"{source}: '{match[0].strip()}' in {text.strip()!r}; write: {advice}"


@pytest.mark.parametrize("name", SOURCES)
def test_texts_avoid_banned_words(name: str) -> None:
    assert list(hits(texts_of(name))) == []


@pytest.mark.parametrize("name", SOURCES)
def test_each_source_has_texts(name: str) -> None:
    """Otherwise the check above would pass trivially."""
    assert len(texts_of(name)) > 20


def test_banned_word_is_found() -> None:
    found = list(hits([Text("page", "The server is no gateway."), Text("page", "It runs.")]))

    assert len(found) == 1
    assert "is no" in found[0]


_NOUN_CLAUSES = re.compile(r"(?:What|Those|The same|Of|As|That|Who) ")


@pytest.mark.parametrize("name", ["docstrings", "comments"])
def test_no_text_begins_with_a_noun_clause(name: str) -> None:
    """A noun says it: not "What a model takes of images", but "Image support of a model"."""
    assert [f"{each.source}: {each.text}" for each in texts_of(name) if is_clause(each.text)] == []


def is_clause(text: str) -> bool:
    return _NOUN_CLAUSES.match(text) is not None
