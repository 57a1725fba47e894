"""Prepares the EBNF and Lark grammars that clients write.

Lark with schemas or expressions is for llguidance: xgrammar would not limit the whitespace of the
first, and misreads some of the others. If only xgrammar can run, as with tools or reasoning, it
gets them in forms that it enforces.
"""

import contextlib
import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from openai_frontend.engines.vllm.grammars import lark
from openai_frontend.engines.vllm.grammars.json_schema import InvalidSchema, enforceable_schema
from openai_frontend.engines.vllm.grammars.llguidance_schema import llguidance_schema
from openai_frontend.engines.vllm.grammars.patterns import (
    WRITABLE,
    check_expansion,
    xgrammar_reads,
)
from openai_frontend.engines.vllm.grammars.regex_syntax import parse
from openai_frontend.engines.vllm.grammars.regex_text import for_llguidance, for_xgrammar
from openai_frontend.engines.vllm.grammars.regex_tree import NOTHING, Node, within
from openai_frontend.engines.vllm.grammars.schema_drafts import current_draft
from openai_frontend.engines.vllm.grammars.xgrammar_errors import reason_of

# In xgrammar's own spelling: a text or a class of characters, and a control character other than
# tab and line breaks in a text
_LITERAL = re.compile(r'"((?:\\.|[^"\\])*)"|(\[(?:\\.|[^\]\\])*\])')
_UNWRITABLE = re.compile(r"(?<!\\)(?:\\\\)*\\(?:0|x0[0-8bBcCeEfF]|x1[0-9a-fA-F]|[bfv])")
_COMMENT = re.compile(r"(?:#|//).*")


def is_lark(grammar: str) -> bool:
    """Whether vLLM treats the grammar as Lark: no line defines a rule with `::=`, as EBNF does."""
    return not any("::=" in _COMMENT.sub("", line) for line in grammar.split("\n"))


def prepared_grammar(grammar: str, *, llguidance_runs: bool) -> str:
    """The grammar in a form that the engine enforces. Raises ValueError, also for invalid EBNF:
    llguidance would take it for Lark and return an empty output.
    """
    import xgrammar

    check_expansion(grammar)
    if is_lark(grammar):
        return _prepared_lark(grammar, llguidance_runs=llguidance_runs)
    _checked(xgrammar.Grammar.from_ebnf, grammar)
    return grammar


def as_ebnf(grammar: str) -> str:
    """The grammar for xgrammar within a structural tag, which accepts only EBNF."""
    import xgrammar

    check_expansion(grammar)
    if not is_lark(grammar):
        _checked(xgrammar.Grammar.from_ebnf, grammar)
        return grammar
    schemas: list[Any] = []
    written = lark.rewritten(grammar, lark.LarkDialect(_reference_to(schemas), _for_xgrammar)).text
    named = {f"{lark.SCHEMA}{i}": _of_schema(schema) for i, schema in enumerate(schemas)}
    return _checked(partial(xgrammar.Grammar.from_lark, named_grammars=named), written)


def _checked(read: Callable[[str], Any], grammar: str) -> str:
    """The grammar in xgrammar's own spelling. Raises ValueError."""
    try:
        parsed = str(read(grammar))
    except RuntimeError as error:
        raise ValueError(reason_of(error) or str(error).partition("\n")[0]) from error
    _check_texts(parsed)
    return parsed


def _prepared_lark(grammar: str, *, llguidance_runs: bool) -> str:
    import llguidance
    import xgrammar

    prepared = lark.rewritten(grammar, lark.LarkDialect(_json_for_llguidance, _for_llguidance))
    if prepared.changed and not llguidance_runs:
        return as_ebnf(grammar)
    if not prepared.changed:
        with contextlib.suppress(RuntimeError):  # llguidance may read it, or reports the error
            _check_texts(str(xgrammar.Grammar.from_lark(grammar)))
            return grammar
    if error := llguidance.LLMatcher.validate_grammar(lark.HEADER + prepared.text, None):
        # The client's own text has the client's positions
        raise ValueError(llguidance.LLMatcher.validate_grammar(grammar, None) or error)
    for name, terminal in lark.terminals_with_operators(prepared.text):
        if not has_text(terminal):
            raise ValueError(f"no text matches the terminal {name}")
    return lark.HEADER + prepared.text


def has_text(grammar: str) -> bool:
    """Whether llguidance finds a first character of a grammar of one terminal, or its end."""
    import llguidance

    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), grammar, log_level=0)
    if matcher.get_error():
        return True  # of another kind, which the engine reports
    matcher.compute_bitmask()
    return not matcher.get_error()


def _json_for_llguidance(schema: Any) -> str:
    return lark.json_of(llguidance_schema(current_draft(schema)))


def _for_llguidance(tree: Node) -> str:
    return for_llguidance(tree) or "(?:)"


def _for_xgrammar(tree: Node) -> str:
    if not xgrammar_reads(tree):
        raise ValueError("xgrammar cannot enforce it: it is ambiguous, or has counts above 127")
    return for_xgrammar(tree) or "()"


def _reference_to(schemas: list[Any]) -> Any:
    def reference(schema: Any) -> str:
        schemas.append(schema)
        return f"@{lark.SCHEMA}{len(schemas) - 1}"

    return reference


def _of_schema(schema: Any) -> Any:
    """xgrammar's grammar of a schema, with at most one space between its parts."""
    import xgrammar

    try:
        content = enforceable_schema(current_draft(schema))
    except InvalidSchema as refused:
        raise ValueError(f"the schema of '%json': {refused}") from None
    form = {"type": "json_schema", "json_schema": content, "max_whitespace_cnt": 1}
    tag = json.dumps({"type": "structural_tag", "format": form})
    return xgrammar.Grammar.from_structural_tag(tag)


def _check_texts(parsed: str) -> None:
    """Refuse texts that no answer contains, in xgrammar's own spelling of a grammar."""
    for literal, members in _LITERAL.findall(parsed):
        if found := _UNWRITABLE.search(literal):
            raise ValueError(f"no answer can contain the control character {found[0]}")
        if members and within(parse(members), WRITABLE) == NOTHING:
            raise ValueError(f"no answer can contain a character of {members[:64]}")
