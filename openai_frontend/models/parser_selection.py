"""Selects the parser of a model's output: the one in the settings, else the one for its files.

Knows no requests.
"""

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol

from openai_frontend.errors import ModelUnavailable, caught, describe_exception
from openai_frontend.parsing.events import Schemas
from openai_frontend.parsing.family import TEXT, Family
from openai_frontend.parsing.guard import ParserGuard
from openai_frontend.parsing.output_format import (
    ExternalParser,
    MakeParser,
    OutputFormat,
    Variables,
)
from openai_frontend.parsing.parser import Parser, ParserPipeline
from openai_frontend.parsing.registry import (
    BY_NAME,
    combined,
    family_for,
    is_inseparable,
    missing_reasoning_support,
    missing_tool_support,
)

SETTINGS = ("tool_call_parser", "reasoning_parser")

_VLLM = "openai_frontend.engines.vllm.parsers"  # imported only if needed


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """The files of a model that determine the format of its output."""

    folder: Path  # of the tokenizer
    chat_template: str | None  # the one in use: the operator's or the tokenizer's

    def model_type(self) -> str | None:
        """The config's model_type; None if there is no config."""
        try:
            config = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ModelUnavailable(f"cannot read its config.json: {error}") from error
        return config.get("model_type") if isinstance(config, dict) else None


def template_for_tools(chat_templates: Mapping[str, str]) -> str | None:
    """The template for requests with tools."""
    return chat_templates.get("tool_use", chat_templates.get("default"))


class CustomParser(Protocol):
    """A user's class, named in a setting, whose instances are `parsing.parser.Parser`s.

    The class attribute `special_tokens = False` declares that it needs no special tokens in the
    text.
    """

    def __call__(
        self, tools: Mapping[str, Mapping[str, Any]], *, prompt: str | None, tokenizer: Path
    ) -> Parser:
        """Create the parser of one completion.

        `tools` maps the request's functions to the schemas of their arguments, `prompt` is the
        rendered prompt if its text is known, `tokenizer` is the folder of the model's tokenizer.
        """


def select_parser(files: ModelFiles, named: Mapping[str, str]) -> OutputFormat:
    """Select by settings first, then by files. Raises ModelUnavailable if a parser cannot load."""
    found = family_for(files.chat_template, files.model_type())
    if not named:
        return OutputFormat(family=found.family, evidence=found.evidence)
    evidence = [f"The setting {setting} is '{parser}'." for setting, parser in named.items()]
    halves = {setting: BY_NAME.get(parser, TEXT) for setting, parser in named.items()}
    for setting in set(SETTINGS) - named.keys():
        halves[setting] = _other_half(next(iter(halves.values())), found.family)
        evidence += found.evidence if halves[setting] is found.family else ()
    try:
        family = combined(halves["tool_call_parser"], halves["reasoning_parser"])
    except ValueError as error:
        raise ModelUnavailable(f"its {' and '.join(named)}: {error}") from error
    external = _external(named, files.folder)
    return OutputFormat(family=family, evidence=tuple(evidence), external=external)


def _other_half(half: Family, found: Family) -> Family:
    """Complete one setting with the detected family, unless either parses tools and reasoning."""
    if is_inseparable(half):
        return half
    return TEXT if is_inseparable(found) else found


def limitations(output_format: OutputFormat, files: ModelFiles) -> tuple[str, ...]:
    """Features that will not work with this model, one sentence each: tool calls first, then
    reasoning.
    """
    calls = missing_tool_support(
        output_format.family, files.chat_template, recognised=output_format.tools
    )
    return tuple(
        filter(None, (calls, missing_reasoning_support(recognised=output_format.reasoning)))
    )


def warning(output_format: OutputFormat, files: ModelFiles) -> str:
    """Why tool calls will not work with a model whose output is parsed; "" if they will.

    A model that does not reason, or only writes text, needs no warning.
    """
    if not (output_format.tools or output_format.reasoning):
        return ""
    return missing_tool_support(
        output_format.family, files.chat_template, recognised=output_format.tools
    )


_Load = Callable[[Mapping[str, str], Path], tuple[MakeParser, bool]]


def _external(named: Mapping[str, str], folder: Path) -> ExternalParser | None:
    """The external parsers. One named for both settings is one parser, as are two of vLLM's."""
    groups: dict[str, dict[str, str]] = {}
    for setting, parser in named.items():
        if parser not in BY_NAME:
            group = "vllm" if parser.startswith("vllm:") else parser
            groups.setdefault(group, {})[setting] = parser
    external = [
        _loaded(_vllm if group == "vllm" else _custom, parsers, folder)
        for group, parsers in groups.items()
    ]
    return _chained(*external) if len(external) > 1 else next(iter(external), None)


def _loaded(load: _Load, parsers: Mapping[str, str], folder: Path) -> ExternalParser:
    name = "+".join(dict.fromkeys(parsers.values()))

    def refuse(error: Exception) -> NoReturn:
        reason = describe_exception(error)
        raise ModelUnavailable(f"its {' and '.join(parsers)} {name}: {reason}") from error

    with caught(refuse):
        make, special_tokens = load(parsers, folder)
    return ExternalParser(
        name=name,
        make=lambda *given: ParserGuard(name, partial(make, *given)),
        tools="tool_call_parser" in parsers,
        reasoning="reasoning_parser" in parsers,
        special_tokens=special_tokens,
    )


def _chained(one: ExternalParser, other: ExternalParser) -> ExternalParser:
    reasoning, tools = (one, other) if one.reasoning else (other, one)

    def make(schemas: Schemas, prompt: str | None, variables: Variables) -> Parser:
        return ParserPipeline(
            reasoning.make({}, prompt, variables), tools.make(schemas, prompt, variables)
        )

    return ExternalParser(
        name=f"{tools.name}+{reasoning.name}",
        make=make,
        tools=True,
        reasoning=True,
        special_tokens=tools.special_tokens or reasoning.special_tokens,
    )


def _vllm(parsers: Mapping[str, str], folder: Path) -> tuple[MakeParser, bool]:
    module = importlib.import_module(_VLLM)
    names = {setting: parser.removeprefix("vllm:") for setting, parser in parsers.items()}
    for setting, name in names.items():
        known: list[str] = module.names(setting)
        if name not in known:
            close = get_close_matches(name, known, n=3, cutoff=0.5) or known
            raise LookupError(f"vLLM has no parser '{name}'; did you mean {', '.join(close)}?")
    loaded: tuple[MakeParser, bool] = module.load(folder, **names)
    return loaded


def _custom(parsers: Mapping[str, str], folder: Path) -> tuple[MakeParser, bool]:
    module, _, name = next(iter(parsers.values())).partition(":")
    custom: CustomParser = getattr(importlib.import_module(module), name)
    if not callable(custom):
        raise TypeError("not a class")

    def make(tools: Schemas, prompt: str | None, variables: Variables) -> Parser:
        return custom(tools, prompt=prompt, tokenizer=folder)

    return make, bool(getattr(custom, "special_tokens", True))
