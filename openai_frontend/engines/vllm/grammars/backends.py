"""Prepares the constraints of an engine's requests: each is rewritten and test-compiled once, in a
sandbox process, before the engine compiles it.
"""

import asyncio
import copy
import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from openai_frontend.engines.engine import ConstraintError
from openai_frontend.engines.vllm import capabilities, versions
from openai_frontend.engines.vllm.grammars import lark
from openai_frontend.engines.vllm.grammars import preprocess as grammar_preprocess
from openai_frontend.engines.vllm.grammars.patterns import LENGTH, check_writable
from openai_frontend.engines.vllm.grammars.preprocess import GrammarSpec, Kind
from openai_frontend.engines.vllm.grammars.sandbox import GrammarSandbox, SandboxLimitExceeded

# Levels of objects and arrays in a schema, and more in a structural tag around schemas: as vLLM
# allows since 0.32
MAX_NESTING = 64
TAG_NESTING = 16
# Stop reasons of requests whose grammar the engine cannot compile, gave up within the answer, or
# that allow none of its tokens
GRAMMAR_FAILED, GRAMMAR_EXCEEDED, GRAMMAR_EXCLUDED = "grammar", "grammar limit", "grammar excluded"
_KEPT = 64  # results kept: for the choices of one request and for repeated requests
_KINDS: tuple[Kind, ...] = ("json", "regex", "grammar", "structural_tag")


@dataclass(frozen=True, slots=True)
class _Refused:
    """The remembered failure of a grammar: keeping the exception would keep its request alive."""

    reason: str


class GrammarPreparer:
    """Prepares the constraints of one engine, off the event loop."""

    def __init__(self, engine: Any) -> None:
        """`engine` is vLLM's. If model.json sets whitespace rules or another backend, nothing is
        changed.
        """
        config = engine.vllm_config.structured_outputs_config
        self._only_xgrammar = config.backend == "xgrammar"
        self._two_engines = versions.installed().has(capabilities.GRAMMAR_ENGINES)
        self._engine = engine
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._trials = GrammarSandbox() if prepares_grammars(config) else None
        self._known: OrderedDict[GrammarSpec, asyncio.Task[GrammarSpec | _Refused]] = OrderedDict()

    async def prepare(self, params: Any) -> Any:
        """Return a copy of vLLM's SamplingParams with the constraint rewritten, in an object of its
        own. Raises ConstraintError, naming the invalid part.
        """
        prepared = copy.copy(params)
        prepared.structured_outputs = await self._prepared(params.structured_outputs)
        return prepared

    async def _prepared(self, constraint: Any) -> Any:
        if self._trials is None:
            return copy.copy(constraint)
        form = _unchecked_spec(constraint)
        if form is None or form not in self._known:  # a known one has been checked
            loop = asyncio.get_running_loop()
            form = await loop.run_in_executor(self._thread, grammar_spec, constraint)
        ready = await self._tried(form, self._trials)
        if self._only_xgrammar and grammar_preprocess.for_llguidance(ready):
            raise ConstraintError(
                "structured_outputs: this model's grammar backend cannot enforce all of it"
            )
        if not self._two_engines:
            _check_for_vllms_scheduler(ready)
        return _changed(constraint, form, ready)

    def start(self) -> None:
        """Start the sandbox; otherwise the first request would wait about 2 s for it."""
        if self._trials is not None:
            self._trials.start()

    def close(self) -> None:
        """Stop the thread and the sandbox."""
        self._engine = None  # vLLM's finalizer must run before interpreter exit
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._trials is not None:
            self._trials.close()

    async def _tried(self, form: GrammarSpec, trials: GrammarSandbox) -> GrammarSpec:
        """Concurrent requests with the same grammar wait for one result."""
        task = self._known.get(form)
        if task is None:
            task = self._known[form] = asyncio.get_running_loop().create_task(
                self._try(form, trials)
            )
            task.add_done_callback(partial(self._forget_failed, form))
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(form)
        outcome = await asyncio.shield(task)
        if isinstance(outcome, _Refused):
            raise ConstraintError(outcome.reason)
        return outcome

    async def _try(self, form: GrammarSpec, trials: GrammarSandbox) -> "GrammarSpec | _Refused":
        loop = asyncio.get_running_loop()
        try:
            trial = await loop.run_in_executor(self._thread, trials.submit, form, self._vocabulary)
            return await asyncio.wrap_future(trial)
        except SandboxLimitExceeded:
            raise
        except ConstraintError as error:
            return _Refused(str(error))

    def _forget_failed(
        self, form: GrammarSpec, task: "asyncio.Task[GrammarSpec | _Refused]"
    ) -> None:
        """A later attempt may succeed. Retrieves the exception: if all waiting requests are gone,
        asyncio must not log it.
        """
        if task.cancelled() or task.exception() is not None:
            self._known.pop(form, None)

    def _vocabulary(self) -> dict[str, Any]:
        """The model's tokens in xgrammar's format; takes about 0.3 s for 150,000 tokens."""
        import xgrammar
        from vllm.utils.mistral import is_mistral_tokenizer

        tokenizer = self._engine.get_tokenizer()
        size = self._engine.model_config.get_vocab_size()
        if is_mistral_tokenizer(tokenizer):
            kind = xgrammar.VocabType.RAW if tokenizer.is_tekken else None
            info = xgrammar.TokenizerInfo(
                tokenizer.vocab, vocab_type=kind or xgrammar.VocabType.BYTE_FALLBACK
            )
        else:
            info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=size)
        two_engines = self._two_engines and not self._only_xgrammar
        return {
            "vocabulary": info.serialize_json(),
            "special_tokens": tag_tokens(tokenizer) if two_engines else None,
        }


def tag_tokens(tokenizer: Any) -> dict[str, int] | None:
    """The tokens that are not text for llguidance; None if it does not support the tokenizer."""
    added = getattr(tokenizer, "added_tokens_decoder", None)
    if not isinstance(added, dict) or not getattr(tokenizer, "is_fast", False):
        return None
    return {
        token.content: number
        for number, token in added.items()
        if token.special or lark.TAG_TOKEN.fullmatch(token.content)
    }


def special_tokens(tokenizer: Any) -> dict[int, str]:
    """Tokens that are left out of the text of an output: id and text."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {token_id: token.content for token_id, token in added.items() if token.special}


def _check_for_vllms_scheduler(form: GrammarSpec) -> None:
    """Raises ConstraintError for what only the gateway's scheduler (scheduler.py) enforces: no
    control characters in strings of bounded length, and what needs llguidance.
    """
    if form.kind == "structural_tag" and LENGTH.search(form.text):
        raise ConstraintError(
            "structured_outputs: minLength and maxLength cannot be enforced with this version of"
            " vLLM. Remove them from the schema."
        )
    if grammar_preprocess.for_llguidance(form):
        raise ConstraintError(
            "structured_outputs: the constraint cannot be enforced with this version of vLLM."
            " Use simpler expressions and schemas."
        )


def prepares_grammars(config: Any) -> bool:
    """Whether an engine with this StructuredOutputsConfig allows any whitespace and uses xgrammar,
    which can limit it, for schemas.
    """
    return config.backend in ("auto", "xgrammar") and not config.disable_any_whitespace


def grammar_spec(constraint: Any) -> GrammarSpec:
    """Convert StructuredOutputsParams. Raises ConstraintError if it is nested too deeply."""
    from vllm.v1.structured_output.utils import choice_as_grammar

    _check_nesting("json", constraint.json, MAX_NESTING)
    _check_nesting("structural_tag", constraint.structural_tag, MAX_NESTING + TAG_NESTING)
    if (given := _unchecked_spec(constraint)) is not None:
        return given
    if constraint.choice is not None:
        for text in constraint.choice:
            _check_choice(text)
        return GrammarSpec("choice", choice_as_grammar(constraint.choice))
    return GrammarSpec("json", json.dumps(constraint.json))


def _check_choice(text: str) -> None:
    try:
        check_writable(text)
    except ValueError as error:
        raise ConstraintError(f"structured_outputs: {error}") from None


def _unchecked_spec(constraint: Any) -> GrammarSpec | None:
    """None if it takes time to convert the constraint."""
    if constraint.json_object:
        return GrammarSpec("json", '{"type": "object"}')
    texts = ((kind, getattr(constraint, kind)) for kind in _KINDS)
    return next((GrammarSpec(kind, text) for kind, text in texts if isinstance(text, str)), None)


def _check_nesting(field: str, value: Any, most: int) -> None:
    """Raises ConstraintError before any function walks through the value. Text that is not JSON
    passes, because the compiler reports the error.
    """
    try:
        level = _containers([json.loads(value) if isinstance(value, str) else value])
        for _ in range(most):
            level = _containers(
                child
                for each in level
                for child in (each.values() if isinstance(each, dict) else each)
            )
        too_deep = bool(level)
    except RecursionError:
        too_deep = True
    except ValueError:
        return
    if too_deep:
        raise ConstraintError(
            f"structured_outputs: {field} is nested too deeply: at most {MAX_NESTING} levels of"
            " objects and arrays in a schema are allowed"
        )


def _containers(values: Iterable[Any]) -> list[Any]:
    return [each for each in values if isinstance(each, dict | list)]


def prepare_constraint(
    constraint: Any, special_tokens: Mapping[str, int] = MappingProxyType({})
) -> Any:
    """A StructuredOutputsParams that vLLM enforces completely, without a test compilation."""
    form = grammar_spec(constraint)
    return _changed(constraint, form, grammar_preprocess.prepare(form, special_tokens))


def _changed(constraint: Any, form: GrammarSpec, ready: GrammarSpec) -> Any:
    from vllm.sampling_params import StructuredOutputsParams

    if ready == form:
        return copy.copy(constraint)
    return StructuredOutputsParams(**{str(ready.kind): ready.text})
