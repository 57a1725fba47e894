"""What a request holds its answer to, made ready for vLLM's grammars: all of each schema enforced,
one space at most between JSON's parts (decision 9), nothing that grows without bound.

Knows xgrammar and llguidance, and nothing of vLLM: the process that tries grammars runs it.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from openai_frontend.engines.vllm.json_schema import Unenforceable, held
from openai_frontend.engines.vllm.patterns import MAX_COUNT, check_expansion, repeat_bound_exceeded

_NAME = "structured_outputs"
_REPEATS = "repeat"  # the kind of a structural tag's part that multiplies what is within it
_COMMENT = re.compile(r"(?:#|//).*")

Kind = Literal["json", "regex", "grammar", "structural_tag", "choice"]


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """One of vLLM's constraints."""

    kind: Kind
    text: str  # a schema, an expression, a grammar, or a tag; choices as EBNF


def prepared(form: GrammarSpec) -> GrammarSpec:
    """The form that vLLM enforces wholly. Raises ValueError, with the part that is at fault.

    Where whitespace is free, a model may write nothing else until its last token; where there is
    none, a model that was taught `{"a": 1}` writes keys and values that it never would. Of vLLM's
    forms only structural tags can tell xgrammar a bound. A schema of which xgrammar would pass
    over a part stays as it is: it goes to llguidance.
    """
    tag: str | None = None
    if form.kind == "regex":
        _named(check_expansion, form.text)
    elif form.kind == "grammar":
        _named(_check_grammar, form.text)
    elif form.kind == "structural_tag":
        tag = _prepared_tag(form.text)
    elif form.kind == "json":
        tag = _prepared_schema(form.text)
    return form if tag is None else GrammarSpec("structural_tag", tag)


def is_lark(grammar: str) -> bool:
    """Whether vLLM takes the grammar for Lark: no line of it defines a rule as EBNF does."""
    return not any("::=" in _COMMENT.sub("", line) for line in grammar.split("\n"))


def _prepared_schema(text: str) -> str | None:
    """The schema as a structural tag; None where it is not xgrammar's to hold."""
    try:
        schema = json.loads(text)
    except ValueError:
        return None  # vLLM says what is wrong with it
    try:
        form = {"type": "json_schema", "json_schema": _named(held, schema), "max_whitespace_cnt": 1}
    except Unenforceable as beyond:
        _check_for_llguidance(text, str(beyond))
        return None
    return _compiled({"type": "structural_tag", "format": form}, _NAME)


def _check_for_llguidance(schema: str, beyond: str) -> None:
    import llguidance

    try:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
        error = llguidance.LLMatcher.validate_grammar(grammar, None)
    except ValueError as refused:
        error = str(refused)
    if error:
        raise ValueError(f"{_NAME}: {beyond}")


def _prepared_tag(text: str) -> str:
    try:
        tag = json.loads(text)
    except ValueError:
        return text  # vLLM says what is wrong with it
    if isinstance(tag, dict) and "structures" in tag:
        tag = _newer(tag)
    if not isinstance(tag, dict) or "format" not in tag:
        return text  # none
    schemas = 0
    for part in _parts(tag["format"]):
        kind = part["type"]
        if kind == "json_schema":
            name = f"{_NAME}.schemas[{schemas}]"
            part["json_schema"] = _named(held, part.get("json_schema"), name)
            schemas += 1
        elif kind == "regex":
            _named(_check_regex, str(part.get("pattern")))
        elif kind == "grammar":
            part["grammar"] = _named(_as_ebnf, str(part.get("grammar")))
        elif kind == _REPEATS:
            raise ValueError(f"{_NAME}: a structural tag cannot have the format 'repeat'")
    return _compiled(tag, None)


def _newer(tag: Mapping[str, Any]) -> Any:
    """Of the older form, tags with a schema each that triggers begin within text."""
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
        form = {"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags}
    except (KeyError, TypeError):
        return tag  # vLLM says what is wrong with it
    return {"type": "structural_tag", "format": form}


def _parts(part: Any) -> Iterator[dict[str, Any]]:
    """The formats of a structural tag in the order of its text, without what a schema holds."""
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
        raise ValueError(f"an expression cannot count beyond {MAX_COUNT} there")


def _check_grammar(grammar: str) -> None:
    """llguidance would take broken EBNF for Lark, and answer with nothing."""
    import xgrammar

    check_expansion(grammar)
    if is_lark(grammar):
        return
    try:
        xgrammar.Grammar.from_ebnf(grammar)
    except RuntimeError as error:
        raise ValueError(reason_of(error) or "the grammar cannot be read") from error


def _as_ebnf(grammar: str) -> str:
    """Structural tags take EBNF alone."""
    import xgrammar

    check_expansion(grammar)
    if not is_lark(grammar):
        return grammar
    try:
        return str(xgrammar.Grammar.from_lark(grammar))
    except RuntimeError as error:
        raise ValueError(reason_of(error) or "the grammar cannot be read") from error


def _compiled(tag: dict[str, Any], name: str | None) -> str:
    """The tag as text, once xgrammar has read it; a schema at fault is found by reading each."""
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
        return reason_of(error) or "no grammar can be made of it"
    return None


def reason_of(error: BaseException) -> str | None:
    """The reason, where the error is one of the form's. Raises MemoryError where it is not."""
    if "bad_alloc" in str(error):
        raise MemoryError from error
    return reason_of_xgrammar(error)


def reason_of_xgrammar(error: BaseException) -> str | None:
    """What stands after `[10:36:53] /project/cpp/converter.cc:83: ` in its errors."""
    _, source, reason = str(error).partition(".cc:")
    reason = reason.partition(": ")[2].strip()
    if reason.startswith("Check failed: "):  # then comes the condition, in the source's words
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
