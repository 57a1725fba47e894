"""Rewrites a request's constraint for vLLM's grammar backends: schemas are enforced completely,
JSON has at most one space between its parts (docs/decisions/0012-constraints.md), and nothing grows
without bound.

Knows xgrammar and llguidance but not vLLM: the sandbox process runs it.
"""

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from openai_frontend.engines.vllm.grammars import lark
from openai_frontend.engines.vllm.grammars.json_schema import (
    DEFINITIONS,
    InvalidSchema,
    Unenforceable,
    enforceable_schema,
    innermost_first,
)
from openai_frontend.engines.vllm.grammars.llguidance_schema import llguidance_schema
from openai_frontend.engines.vllm.grammars.patterns import (
    WRITABLE,
    check_expansion,
    check_writable,
    xgrammar_reads,
)
from openai_frontend.engines.vllm.grammars.regex_search import Search, whole_texts
from openai_frontend.engines.vllm.grammars.regex_text import for_xgrammar
from openai_frontend.engines.vllm.grammars.regex_tree import NOTHING, Node, within
from openai_frontend.engines.vllm.grammars.schema_drafts import current_draft
from openai_frontend.engines.vllm.grammars.text_grammars import as_ebnf, prepared_grammar
from openai_frontend.engines.vllm.grammars.xgrammar_errors import error_of

_NAME = "structured_outputs"
_REPEATS = "repeat"  # the format of a structural tag that repeats its content
# Parts of the schemas in one constraint. Above, llguidance enforces it if it can: the time of
# xgrammar grows with their square. 150 functions and 131,072 tokens take it 12 s and 67 MB,
# llguidance 0.1 s.
_MANY_PARTS = 128
# Entries of an object or a list in what llguidance enforces: at each token it follows at most 2,000
# alternatives, two for each optional property of an object, and then fails.
_WIDEST = 500

Kind = Literal["json", "regex", "grammar", "structural_tag", "choice"]


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """One constraint in vLLM's terms."""

    kind: Kind
    text: str  # JSON schema, regex, grammar or structural tag; choices as EBNF


def prepare(
    spec: GrammarSpec, special_tokens: Mapping[str, int] | None = MappingProxyType({})
) -> GrammarSpec:
    """Return the constraint in a form that vLLM enforces completely. Raises ValueError, naming the
    invalid part.

    With unlimited whitespace, a model may write nothing else until its last token. Without any, a
    model trained on `{"a": 1}` writes keys and values that it otherwise never would. Of vLLM's
    constraints, only structural tags can pass xgrammar a limit. What xgrammar would enforce only
    partly becomes a Lark grammar for llguidance (`for_llguidance`), and so do large schemas. But
    structural tags and large schemas do so only with the `special_tokens`, which are not text for
    llguidance.
    """
    if spec.kind == "regex":
        prepared: GrammarSpec = _named(_prepared_regex, spec)
        return prepared
    if spec.kind == "grammar":
        prepare_grammar = partial(prepared_grammar, llguidance_runs=special_tokens is not None)
        return GrammarSpec("grammar", _named(prepare_grammar, spec.text))
    if spec.kind == "structural_tag":
        return _prepared_tag(spec, special_tokens)
    return _prepared_schema(spec, special_tokens) if spec.kind == "json" else spec


def for_llguidance(spec: GrammarSpec) -> bool:
    """Whether the grammar is for llguidance, and xgrammar cannot read it."""
    return spec.kind == "grammar" and spec.text.startswith(lark.HEADER)


def embedded_grammars(spec: GrammarSpec) -> list[str]:
    """The EBNF grammars within a prepared structural tag."""
    if spec.kind != "structural_tag":
        return []
    parts = _parts(json.loads(spec.text))
    return [part["grammar"] for part in parts if part["type"] == "grammar"]


def _prepared_regex(spec: GrammarSpec) -> GrammarSpec:
    """The expression with its classes written out, for llguidance if xgrammar could misread it."""
    trees = _written_trees(spec.text)
    if len(trees) == 1 and xgrammar_reads(trees[0]):
        return GrammarSpec("regex", for_xgrammar(trees[0]))
    return GrammarSpec("grammar", lark.grammar_of_trees(trees))


def _written_trees(pattern: str) -> list[Node]:
    check_expansion(pattern)
    trees = [within(tree, WRITABLE) for tree in whole_texts(pattern, Search.WHOLE)]
    if NOTHING in trees:
        raise ValueError("no text matches it")
    return trees


def _prepared_schema(spec: GrammarSpec, special_tokens: Mapping[str, int] | None) -> GrammarSpec:
    """The schema as a structural tag, or for llguidance if xgrammar cannot enforce it, or takes
    long to compile it.
    """
    try:
        schema = current_draft(json.loads(spec.text))
    except ValueError:
        return spec  # vLLM reports the error
    many = special_tokens is not None and _has_many_parts(schema)
    refused: ValueError | None = None
    part = {"type": "json_schema", "max_whitespace_cnt": 1}
    try:
        part["json_schema"] = _named(enforceable_schema, schema)
        if not many:
            return _as_tag(part, _NAME)
    except Unenforceable as reason:
        refused = ValueError(f"{_NAME}: {reason}")
    except _RefusedByXGrammar as reason:
        refused = reason
    if (grammar := _for_llguidance(schema, _guidance_schema)) is not None:
        return grammar
    if refused is not None:
        raise refused
    return _as_tag(part, _NAME)


def _guidance_schema(schema: Any) -> str:
    return lark.grammar_of_schema(llguidance_schema(schema))


def _for_llguidance(form: Any, write: Callable[[Any], str]) -> GrammarSpec | None:
    """The form, a schema or a structural tag, for llguidance; None if it refuses it, or could fail
    within an answer.
    """
    import llguidance

    if any(len(each) > _WIDEST for each in _containers(form)):
        return None
    try:
        grammar = write(form)
    except (lark.NotConvertible, InvalidSchema):
        return None
    if llguidance.LLMatcher.validate_grammar(grammar, None):
        return None
    return GrammarSpec("grammar", grammar)


def _has_many_parts(form: Any) -> bool:
    return sum(isinstance(each, dict) for each in _containers(form)) > _MANY_PARTS


def _containers(form: Any) -> Iterator[dict[str, Any] | list[Any]]:
    """The form and all objects and lists in it, without lists of values and names."""
    waiting = [form]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += (each for key, each in part.items() if key not in ("enum", "required"))
        elif isinstance(part, list):
            yield part
            waiting += part


def _prepared_tag(spec: GrammarSpec, special_tokens: Mapping[str, int] | None) -> GrammarSpec:
    try:
        tag = json.loads(spec.text)
    except ValueError:
        return spec  # vLLM reports the error
    if isinstance(tag, dict) and "structures" in tag:
        tag = _convert_legacy(tag)
    if not isinstance(tag, dict) or "format" not in tag:
        return spec  # not a structural tag
    original = copy.deepcopy(tag["format"])
    refused = _refused_by_xgrammar(tag["format"], original)
    many = special_tokens is not None and _has_many_parts(original)
    if not refused and not many:
        try:
            return _as_tag(tag["format"], None)
        except _RefusedByXGrammar as reason:
            refused = str(reason)
    if special_tokens is not None:
        write = partial(lark.grammar_of_tag, special_tokens=special_tokens)
        grammar = _for_llguidance(original, write)
        if grammar is not None:
            return grammar
    if refused and any(part["type"] == "grammar" for part in _parts(original)):
        raise ValueError(f"{refused} together with a custom tool's grammar. Remove one of them")
    if refused:
        raise ValueError(refused)
    return _as_tag(tag["format"], None)


def _refused_by_xgrammar(form: Any, original: Any) -> str | None:
    """Prepare the parts of a structural tag for xgrammar, and their copies for llguidance. The
    first reason why xgrammar cannot enforce one.
    """
    refused: list[str] = []
    for part, given, name in _named_parts(form, original):
        try:
            _prepare_part(part, given, name)
        except _ForLLGuidance as reason:
            refused.append(f"{name}: {reason}")
    return refused[0] if refused else None


class _ForLLGuidance(ValueError):
    """The part can only be enforced by llguidance."""


def _named_parts(form: Any, original: Any) -> Iterator[tuple[dict[str, Any], dict[str, Any], str]]:
    """Each part of a structural tag, its copy, and its name in errors."""
    schemas = 0
    for part, given in zip(_parts(form), _parts(original), strict=True):
        if part["type"] == "json_schema":
            yield part, given, f"{_NAME}.schemas[{schemas}]"
            schemas += 1
        else:
            yield part, given, _NAME


def _prepare_part(part: dict[str, Any], given: dict[str, Any], name: str) -> None:
    """Prepare the part for xgrammar, and its copy for llguidance."""
    kind = part["type"]
    if kind == "json_schema":
        _named(lambda _: _prepare_schema_part(part, given), None, name)
    elif kind == "regex":
        _named(lambda _: _prepare_regex_part(part), None)
    elif kind == "const_string":
        _named(check_writable, str(part.get("value")))
    elif kind == "grammar":
        part["grammar"] = _named(as_ebnf, str(part.get("grammar")))
    elif kind == _REPEATS:
        raise ValueError(f"{_NAME}: a structural tag cannot have the format 'repeat'")


def _prepare_schema_part(part: dict[str, Any], given: dict[str, Any]) -> None:
    schema = current_draft(part.get("json_schema"))
    try:
        given["json_schema"] = llguidance_schema(schema)
    except InvalidSchema:
        given["json_schema"] = None  # llguidance cannot enforce it
    try:
        part["json_schema"] = enforceable_schema(schema)
    except Unenforceable as refused:
        raise _ForLLGuidance(str(refused)) from None


def _prepare_regex_part(part: dict[str, Any]) -> None:
    trees = _written_trees(str(part.get("pattern")))
    if len(trees) > 1 or not xgrammar_reads(trees[0]):
        raise _ForLLGuidance("the expression cannot be enforced")
    part["pattern"] = for_xgrammar(trees[0])


def _convert_legacy(tag: Mapping[str, Any]) -> Any:
    """Convert the legacy format: tags with a schema each, started by triggers within text."""
    try:
        tags = [
            {
                "type": "tag",
                "begin": each["begin"],
                "content": {"type": "json_schema", "json_schema": each["schema"]},
                "end": each["end"],
            }
            for each in tag["structures"]
        ]
        spec = {"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags}
    except (KeyError, TypeError):
        return tag  # vLLM reports the error
    return {"type": "structural_tag", "format": spec}


def _parts(part: Any) -> Iterator[dict[str, Any]]:
    """The formats of a structural tag in text order, without the content of schemas."""
    if isinstance(part, list):
        for each in part:
            yield from _parts(each)
    elif isinstance(part, dict):
        if isinstance(part.get("type"), str):
            yield part
        if part.get("type") != "json_schema":
            for each in part.values():
                yield from _parts(each)


class _RefusedByXGrammar(ValueError):
    """xgrammar cannot compile it. llguidance may."""


def _as_tag(form: dict[str, Any], name: str | None) -> GrammarSpec:
    """The structural tag, after xgrammar has parsed it. To find an invalid schema, each is parsed
    separately.
    """
    text = json.dumps({"type": "structural_tag", "format": form}, ensure_ascii=False)
    error = error_of(text)
    if error is None:
        return GrammarSpec("structural_tag", text)
    schemas = [part["json_schema"] for part in _parts(form) if part["type"] == "json_schema"]
    for number, schema in enumerate(schemas):
        if (refused := _refused_part(schema)) is not None:
            place = name or f"{_NAME}.schemas[{number}]"
            raise _RefusedByXGrammar(f"{place}: {refused}")
    raise _RefusedByXGrammar(f"{_NAME}: {error}")


def _refused_part(schema: Any) -> InvalidSchema | None:
    """Why xgrammar refuses the schema, with the path of the innermost part that it refuses."""
    shared = schema if isinstance(schema, Mapping) else {}
    definitions = {key: shared[key] for key in DEFINITIONS if key in shared}
    for path, part in innermost_first(schema):
        whole = {**part, **definitions} if isinstance(part, Mapping) else part
        form = {"type": "json_schema", "json_schema": whole}
        reason = error_of(json.dumps({"type": "structural_tag", "format": form}))
        if reason is not None:
            refused = InvalidSchema(reason)
            refused.path = path
            return refused
    return None


def _named(check: Callable[[Any], Any], value: Any, name: str = _NAME) -> Any:
    try:
        return check(value)
    except (Unenforceable, _ForLLGuidance):
        raise
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
