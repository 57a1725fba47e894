"""Rewrites a request's constraint for vLLM's grammar backends: schemas are enforced completely,
JSON has at most one space between its parts (decision 9), and nothing grows without bound.

Knows xgrammar and llguidance but not vLLM: the sandbox process runs it.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from openai_frontend.engines.vllm.json_schema import (
    Unenforceable,
    enforceable_schema,
    reduced_schema,
)
from openai_frontend.engines.vllm.patterns import MAX_COUNT, check_expansion, repeat_bound_exceeded

_NAME = "structured_outputs"
_REPEATS = "repeat"  # the format of a structural tag that repeats its content
_ANY_OBJECT = {"type": "object", "additionalProperties": True}
_COMMENT = re.compile(r"(?:#|//).*")

# llguidance's options: at most one space after a comma or colon, and no other whitespace. They
# replace a client's own, which could make it ignore keywords.
_SEPARATORS = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}

Kind = Literal["json", "regex", "grammar", "structural_tag", "choice"]


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """One constraint in vLLM's terms."""

    kind: Kind
    text: str  # JSON schema, regex, grammar or structural tag; choices as EBNF


def prepare(spec: GrammarSpec) -> GrammarSpec:
    """Return the constraint in a form that vLLM enforces completely. Raises ValueError, naming the
    invalid part.

    With unlimited whitespace, a model may write nothing else until its last token. Without any, a
    model trained on `{"a": 1}` writes keys and values that it otherwise never would. Of vLLM's
    constraints, only structural tags can pass xgrammar a limit. A schema that xgrammar would
    enforce only partly goes to llguidance, with separators that limit it.
    """
    tag: str | None = None
    if spec.kind == "regex":
        _named(check_expansion, spec.text)
    elif spec.kind == "grammar":
        _named(_check_grammar, spec.text)
    elif spec.kind == "structural_tag":
        tag = _prepared_tag(spec.text)
    elif spec.kind == "json":
        return _prepared_schema(spec)
    return spec if tag is None else GrammarSpec("structural_tag", tag)


def is_lark(grammar: str) -> bool:
    """Whether vLLM treats the grammar as Lark: no line defines a rule with `::=`, as EBNF does."""
    return not any("::=" in _COMMENT.sub("", line) for line in grammar.split("\n"))


def _prepared_schema(spec: GrammarSpec) -> GrammarSpec:
    """The schema as a structural tag, or for llguidance if xgrammar cannot enforce it."""
    try:
        schema = json.loads(spec.text)
    except ValueError:
        return spec  # vLLM reports the error
    try:
        held = {
            "type": "json_schema",
            "json_schema": _named(enforceable_schema, schema),
            "max_whitespace_cnt": 1,
        }
    except Unenforceable as unenforceable:
        text = json.dumps({**schema, "x-guidance": _SEPARATORS})
        _check_for_llguidance(text, str(unenforceable))
        return GrammarSpec("json", text)
    return GrammarSpec(
        "structural_tag", _compiled({"type": "structural_tag", "format": held}, _NAME)
    )


def _check_for_llguidance(schema: str, unenforceable: str) -> None:
    import llguidance

    try:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
        error = llguidance.LLMatcher.validate_grammar(grammar, None)
    except ValueError as refused:
        error = str(refused)
    if error:
        raise ValueError(f"{_NAME}: {unenforceable}")


def _prepared_tag(text: str) -> str:
    try:
        tag = json.loads(text)
    except ValueError:
        return text  # vLLM reports the error
    if isinstance(tag, dict) and "structures" in tag:
        tag = _convert_legacy(tag)
    if not isinstance(tag, dict) or "format" not in tag:
        return text  # not a structural tag
    schemas = 0
    for part in _parts(tag["format"]):
        kind = part["type"]
        if kind == "json_schema":
            name = f"{_NAME}.schemas[{schemas}]"
            part["json_schema"] = _named(_schema_of, part, name)
            schemas += 1
        elif kind == "regex":
            _named(_check_regex, str(part.get("pattern")))
        elif kind == "grammar":
            part["grammar"] = _named(_as_ebnf, str(part.get("grammar")))
        elif kind == _REPEATS:
            raise ValueError(f"{_NAME}: a structural tag cannot have the format 'repeat'")
    return _compiled(tag, None)


def _schema_of(part: dict[str, Any]) -> Any:
    """The schema of a part of a structural tag, as xgrammar enforces it.

    With `"strict": false` beside it, a schema is never refused: keywords that no grammar can
    enforce are dropped, and what does not compile becomes any object. xgrammar ignores this key.
    """
    schema = part.get("json_schema")
    if part.pop("strict", True) is not False:
        return enforceable_schema(schema)
    reduced = reduced_schema(schema)
    tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": reduced}}
    return _ANY_OBJECT if _error_of(json.dumps(tag)) else reduced


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


def _check_regex(pattern: str) -> None:
    check_expansion(pattern)
    if repeat_bound_exceeded(pattern):
        raise ValueError(
            f"repetition counts in a structural tag's regex are limited to {MAX_COUNT}"
        )


def _check_grammar(grammar: str) -> None:
    """Refuse invalid EBNF: llguidance would take it for Lark and return an empty output."""
    import xgrammar

    check_expansion(grammar)
    if is_lark(grammar):
        return
    try:
        xgrammar.Grammar.from_ebnf(grammar)
    except RuntimeError as error:
        raise ValueError(reason_of(error) or "invalid grammar") from error


def _as_ebnf(grammar: str) -> str:
    """Structural tags accept only EBNF."""
    import xgrammar

    check_expansion(grammar)
    if not is_lark(grammar):
        return grammar
    try:
        return str(xgrammar.Grammar.from_lark(grammar))
    except RuntimeError as error:
        raise ValueError(reason_of(error) or "invalid grammar") from error


def _compiled(tag: dict[str, Any], name: str | None) -> str:
    """The tag as text, after xgrammar has parsed it. To find an invalid schema, each is parsed
    separately.
    """
    text = json.dumps(tag, ensure_ascii=False)
    error = _error_of(text)
    if error is None:
        return text
    schemas = [part for part in _parts(tag["format"]) if part["type"] == "json_schema"]
    for number, part in enumerate(schemas):
        reason = _error_of(json.dumps({"type": "structural_tag", "format": part}))
        if reason is not None:
            raise ValueError(f"{name or f'{_NAME}.schemas[{number}]'}: {reason}")
    raise ValueError(f"{_NAME}: {error}")


def _error_of(tag: str) -> str | None:
    import xgrammar

    try:
        xgrammar.Grammar.from_structural_tag(tag)
    except (RuntimeError, ValueError) as error:
        return reason_of(error) or "it does not compile"
    return None


def reason_of(error: BaseException) -> str | None:
    """The reason if the error is about the grammar. Raises MemoryError if xgrammar ran out of
    memory.
    """
    if "bad_alloc" in str(error):
        raise MemoryError from error
    return reason_of_xgrammar(error)


def reason_of_xgrammar(error: BaseException) -> str | None:
    """The text after `[10:36:53] /project/cpp/converter.cc:83: ` in xgrammar's errors."""
    _, source, reason = str(error).partition(".cc:")
    reason = reason.partition(": ")[2].strip()
    if reason.startswith("Check failed: "):  # followed by the failed C++ condition
        reason = reason.rpartition(" is false: ")[2]
    return reason if source else None


def _named(check: Callable[[Any], Any], value: Any, name: str = _NAME) -> Any:
    try:
        return check(value)
    except Unenforceable as error:
        if name == _NAME:
            raise
        raise ValueError(f"{name}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
