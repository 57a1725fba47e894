"""What a request holds its answer to, made ready for vLLM's grammars: all of each schema enforced,
one space at most between JSON's parts (decision 9), nothing that takes long to compile.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from openai_frontend.engines.vllm.patterns import MAX_COUNT, check_expansion, counts_too_far
from openai_frontend.engines.vllm.schema import Beyond, held

_NAME = "structured_outputs"
_PREPARED = 64  # texts whose preparation is kept: the choices of a request, and requests alike
_REPEATS = "repeat"  # the kind of a structural tag's part that multiplies what is within it


class Grammars:
    """Prepares the constraints of one engine, in a thread of its own: a schema of 256 KiB takes
    some 50 ms, which the event loop does not have.
    """

    def __init__(self, config: Any) -> None:
        """`config` is the engine's StructuredOutputsConfig. What model.json says of whitespace or
        of another backend holds: then nothing is changed.
        """
        self._ours = is_free(config)
        self._only_xgrammar = config.backend == "xgrammar"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")

    async def prepare(self, params: Any) -> None:
        """Change the constraint of vLLM's SamplingParams. Raises ValueError, with the part that
        is at fault.
        """
        if not self._ours:
            return
        loop = asyncio.get_running_loop()
        params.structured_outputs = await loop.run_in_executor(
            self._thread, prepared, params.structured_outputs
        )
        if self._only_xgrammar and params.structured_outputs.json is not None:
            raise ValueError(f"{_NAME}: the model's grammars cannot enforce all of the schema")

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def is_free(config: Any) -> bool:
    """Whether an engine of this StructuredOutputsConfig lets models write any whitespace, and
    gives schemas to xgrammar, which can bound it.
    """
    return config.backend in ("auto", "xgrammar") and not config.disable_any_whitespace


def prepared(constraint: Any) -> Any:
    """Return a StructuredOutputsParams that vLLM enforces wholly.

    Where whitespace is free, a model may write nothing else until its last token; where there is
    none, a model that was taught `{"a": 1}` writes keys and values that it never would. Of vLLM's
    forms only structural tags can tell xgrammar a bound. A schema of which xgrammar would pass
    over a part stays as it is: it goes to llguidance.
    """
    from vllm.sampling_params import StructuredOutputsParams, check_json_nesting

    if constraint.regex is not None:
        _named(check_expansion, constraint.regex)
    if constraint.grammar is not None:
        _named(_check_grammar, constraint.grammar)
    if constraint.structural_tag is not None:
        check_json_nesting(constraint.structural_tag, structural_tag=True)
        tag: str | None = _prepared_tag(constraint.structural_tag)
    elif constraint.json is not None or constraint.json_object:
        check_json_nesting(constraint.json)  # before anything walks through it
        tag = _prepared_schema(_schema_text(constraint))
    else:
        return constraint
    return constraint if tag is None else StructuredOutputsParams(structural_tag=tag)


def _schema_text(constraint: Any) -> str:
    if constraint.json_object:
        return '{"type": "object"}'
    return constraint.json if isinstance(constraint.json, str) else json.dumps(constraint.json)


@lru_cache(_PREPARED)
def _prepared_schema(text: str) -> str | None:
    """The schema as a structural tag; None where it is not xgrammar's to hold."""
    try:
        schema = json.loads(text)
    except ValueError:
        return None  # vLLM says what is wrong with it
    try:
        form = {"type": "json_schema", "json_schema": _named(held, schema), "max_whitespace_cnt": 1}
    except Beyond as beyond:
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


@lru_cache(_PREPARED)
def _prepared_tag(text: str) -> str:
    try:
        tag = json.loads(text)
    except ValueError:
        return text  # vLLM says what is wrong with it
    if not isinstance(tag, dict) or "format" not in tag:
        return text  # the older form, or none
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
    if counts_too_far(pattern):
        raise ValueError(f"an expression cannot count beyond {MAX_COUNT} there")


def _check_grammar(grammar: str) -> None:
    """llguidance would take broken EBNF for Lark, and answer with nothing."""
    import xgrammar
    from vllm.v1.structured_output.utils import grammar_is_likely_lark

    check_expansion(grammar)
    if grammar_is_likely_lark(grammar):
        return
    try:
        xgrammar.Grammar.from_ebnf(grammar)
    except RuntimeError as error:
        raise ValueError(reason_of_xgrammar(error) or "the grammar cannot be read") from error


def _as_ebnf(grammar: str) -> str:
    """Structural tags take EBNF alone."""
    import xgrammar
    from vllm.v1.structured_output.utils import grammar_is_likely_lark

    check_expansion(grammar)
    if not grammar_is_likely_lark(grammar):
        return grammar
    try:
        return str(xgrammar.Grammar.from_lark(grammar))
    except RuntimeError as error:
        raise ValueError(reason_of_xgrammar(error) or "the grammar cannot be read") from error


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
        return reason_of_xgrammar(error) or "no grammar can be made of it"
    return None


def reason_of_xgrammar(error: BaseException) -> str | None:
    """What stands after `[10:36:53] /project/cpp/converter.cc:83: ` in its errors."""
    _, source, reason = str(error).partition(".cc:")
    return reason.partition(": ")[2].strip() if source else None


def _named(check: Callable[[Any], Any], value: Any, name: str = _NAME) -> Any:
    try:
        return check(value)
    except Beyond as error:
        if name == _NAME:
            raise
        raise ValueError(f"{name}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
