"""The constraints of one engine's requests: each is prepared and tried once, in a process that may
fail, before the engine compiles it.
"""

import asyncio
import json
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from openai_frontend.engines.vllm import arguments, grammar_preprocess
from openai_frontend.engines.vllm.grammar_preprocess import GrammarSpec, Kind
from openai_frontend.engines.vllm.grammar_sandbox import GrammarSandbox, SandboxLimitExceeded
from openai_frontend.engines.vllm.patterns import LENGTH, MAX_COUNT, repeat_bound_exceeded

_KEPT = 64  # forms whose trial is remembered: the choices of a request, and requests alike
_KINDS: tuple[Kind, ...] = ("json", "regex", "grammar", "structural_tag")


@dataclass(frozen=True, slots=True)
class _Refused:
    """What is remembered of a form that fails: an error would keep its request alive."""

    reason: str


class GrammarPreparer:
    """Prepares the constraints of one engine, away from the event loop."""

    def __init__(self, engine: Any) -> None:
        """`engine` is vLLM's. What model.json says of whitespace or of another backend holds:
        then nothing is changed.
        """
        config = engine.vllm_config.structured_outputs_config
        self._only_xgrammar = config.backend == "xgrammar"
        self._is_own_scheduler = arguments.tested_version()
        self._engine = engine
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._trials = GrammarSandbox() if prepares_grammars(config) else None
        self._known: OrderedDict[GrammarSpec, asyncio.Task[GrammarSpec | _Refused]] = OrderedDict()

    async def prepare(self, params: Any) -> None:
        """Change the constraint of vLLM's SamplingParams. Raises ValueError, with the part that
        is at fault.
        """
        if self._trials is None:
            return
        constraint = params.structured_outputs
        loop = asyncio.get_running_loop()
        form = await loop.run_in_executor(self._thread, grammar_spec, constraint)
        ready = await self._tried(form, self._trials)
        if self._only_xgrammar and ready.kind == "json":
            raise ValueError(
                "structured_outputs: the model's grammars cannot enforce all of the schema"
            )
        if not self._is_own_scheduler:
            _check_for_vllms_scheduler(ready)
        params.structured_outputs = _changed(constraint, form, ready)

    def start(self) -> None:
        """Start the process: the first request would wait some 2 s for it."""
        if self._trials is not None:
            self._trials.start()

    def close(self) -> None:
        """End the thread and the process."""
        self._engine = None  # vLLM's finalizer must run before the interpreter's end
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._trials is not None:
            self._trials.close()

    async def _tried(self, form: GrammarSpec, trials: GrammarSandbox) -> GrammarSpec:
        """Requests that come together with one form wait for one trial."""
        task = self._known.get(form)
        if task is None:
            task = self._known[form] = asyncio.get_running_loop().create_task(
                self._try(form, trials)
            )
            task.add_done_callback(_seen)
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(form)
        outcome = await asyncio.shield(task)
        if isinstance(outcome, _Refused):
            raise ValueError(outcome.reason)
        return outcome

    async def _try(self, form: GrammarSpec, trials: GrammarSandbox) -> "GrammarSpec | _Refused":
        loop = asyncio.get_running_loop()
        try:
            trial = await loop.run_in_executor(self._thread, trials.submit, form, self._vocabulary)
            return await asyncio.wrap_future(trial)
        except Exception as error:
            if isinstance(error, ValueError) and not isinstance(error, SandboxLimitExceeded):
                return _Refused(str(error))
            self._known.pop(form, None)  # another time it may pass
            raise

    def _vocabulary(self) -> str:
        """The model's tokens as xgrammar keeps them; some 0.3 s for 150,000."""
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
        text: str = info.serialize_json()
        return text


def _seen(task: "asyncio.Task[GrammarSpec | _Refused]") -> None:
    """Whoever asked may have gone: then nobody else looks at what is wrong with the form."""
    if not task.cancelled():
        task.exception()


def _check_for_vllms_scheduler(form: GrammarSpec) -> None:
    """Raise ValueError for what only the gateway's scheduler (scheduler.py) enforces: it keeps
    control characters out of strings of bounded length, and gives long counts to llguidance.
    """
    if form.kind == "structural_tag" and LENGTH.search(form.text):
        raise ValueError(
            "structured_outputs: minLength and maxLength cannot be enforced with this version of"
            " vLLM. Remove them from the schema."
        )
    if form.kind == "regex" and repeat_bound_exceeded(form.text):
        raise ValueError(
            f"structured_outputs: a regex with a repetition count above {MAX_COUNT} cannot be"
            " enforced with this version of vLLM."
        )


def prepares_grammars(config: Any) -> bool:
    """Whether an engine of this StructuredOutputsConfig lets models write any whitespace, and
    gives schemas to xgrammar, which can bound it.
    """
    return config.backend in ("auto", "xgrammar") and not config.disable_any_whitespace


def grammar_spec(constraint: Any) -> GrammarSpec:
    """A StructuredOutputsParams as one form. Raises where it is nested too deeply for anything to
    walk through it.
    """
    from vllm.sampling_params import check_json_nesting
    from vllm.v1.structured_output.utils import choice_as_grammar

    check_json_nesting(constraint.json)
    check_json_nesting(constraint.structural_tag, structural_tag=True)
    if constraint.json_object:
        return GrammarSpec("json", '{"type": "object"}')
    if constraint.choice is not None:
        return GrammarSpec("choice", choice_as_grammar(constraint.choice))
    (kind,) = (kind for kind in _KINDS if getattr(constraint, kind) is not None)
    given = getattr(constraint, kind)
    return GrammarSpec(kind, given if isinstance(given, str) else json.dumps(given))


def prepared(constraint: Any) -> Any:
    """A StructuredOutputsParams that vLLM enforces wholly, without a trial of it."""
    form = grammar_spec(constraint)
    return _changed(constraint, form, grammar_preprocess.prepared(form))


def _changed(constraint: Any, form: GrammarSpec, ready: GrammarSpec) -> Any:
    from vllm.sampling_params import StructuredOutputsParams

    return constraint if ready == form else StructuredOutputsParams(**{str(ready.kind): ready.text})
