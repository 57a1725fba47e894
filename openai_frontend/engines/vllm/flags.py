"""Reads engine flags of `vllm serve` with the installed vLLM's own parser."""

import argparse
import ast
import importlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NoReturn

from openai_frontend.engines.vllm import arguments, versions

_MODULE = "vllm/engine/arg_utils.py"
# Modules of FlexibleArgumentParser, by version of vLLM
_PARSER_MODULES = ("vllm.utils.argparse_utils", "vllm.utils")


@cache
def names() -> frozenset[str]:
    """The engine flags in the sources of the installed vLLM, which takes 0.1 s; none without it."""
    try:
        source = (versions.site_packages() / _MODULE).read_text(encoding="utf-8")
        return frozenset(_flags(ast.parse(source)))
    except (ValueError, OSError, SyntaxError):
        return frozenset()


def _flags(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        match node:
            case ast.Call(func=ast.Attribute(attr="add_argument")):
                for each in node.args:
                    if isinstance(each, ast.Constant) and isinstance(each.value, str):
                        yield each.value


def read(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The engine arguments that flags and their values set, in JSON's types, and the words that
    belong to no flag. Raises ValueError with the reason for an invalid value, or if this vLLM
    has no such flag.
    """
    parser = _parser()
    parser.left = []
    found: dict[str, Any] = vars(parser.parse_args(list(words)))
    unknown = [word for word in parser.left if word.startswith("--")]
    if unknown:
        raise ValueError(f"vLLM {versions.installed().version} has no such flag")
    return found, parser.left


@cache
def _parser() -> Any:
    """vLLM's parser of engine flags. Importing vLLM takes seconds."""
    arguments.set_environment()
    from vllm.engine.arg_utils import AsyncEngineArgs

    class EngineFlags(_flexible_parser()):  # type: ignore[misc]  # vLLM has no types here
        left: list[str]

        def error(self, message: str) -> NoReturn:
            raise ValueError(_reason(message))

        def parse_known_args(self, *given: Any, **named: Any) -> tuple[argparse.Namespace, Any]:
            found, self.left = super().parse_known_args(*given, **named)
            return found, []

    parser = AsyncEngineArgs.add_cli_args(EngineFlags(add_help=False, allow_abbrev=False))
    for action in parser._actions:
        action.default = argparse.SUPPRESS
        if action.type is not None:
            action.type = _as_json(action.type)
    return parser


def _reason(message: str) -> str:
    """Without the flag's names, and on one line without pydantic's details."""
    text = re.sub(r"^argument \S+: ", "", message)
    lines = [line.partition(" [type=")[0].strip() for line in text.splitlines()[:2]]
    return ": ".join(lines)


def _flexible_parser() -> Any:
    for module in _PARSER_MODULES:
        found = getattr(importlib.import_module(module), "FlexibleArgumentParser", None)
        if found is not None:
            return found
    raise ValueError("this vLLM has no FlexibleArgumentParser")


def _as_json(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """Checks a value with vLLM's type, and keeps its JSON where the type is a class of vLLM's."""

    def checked(text: str) -> Any:
        value = convert(text)
        try:
            json.dumps(value)
        except TypeError:
            return json.loads(text)
        return value

    checked.__name__ = getattr(convert, "__name__", "value")
    return checked
