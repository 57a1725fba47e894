"""vLLM's scheduler with fewer outputs for answers that are not streamed, and with two grammar
backends: xgrammar, and llguidance for what xgrammar cannot enforce. Runs in the EngineCore process,
which loads it by name.

vLLM chooses a backend per request, but its process keeps the backend of the first request for all
later ones (0.32, v1/structured_output/__init__.py). A schema meant for llguidance would be compiled
by xgrammar, which ignores what it does not know.
"""

import functools
import json
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, FinishReason
from vllm.v1.request import RequestStatus
from vllm.v1.structured_output.backend_guidance import GuidanceBackend
from vllm.v1.structured_output.backend_types import (
    StructuredOutputBackend,
    StructuredOutputOptions,
)
from vllm.v1.structured_output.backend_xgrammar import (
    XgrammarBackend,
    validate_xgrammar_grammar,
)

from openai_frontend.engines.vllm import versions
from openai_frontend.engines.vllm.grammars import lark
from openai_frontend.engines.vllm.grammars.backends import (
    GRAMMAR_EXCEEDED,
    GRAMMAR_EXCLUDED,
    GRAMMAR_FAILED,
    prepares_grammars,
    special_tokens,
)
from openai_frontend.engines.vllm.grammars.patterns import LENGTH
from openai_frontend.engines.vllm.processes import children as processes
from openai_frontend.engines.vllm.processes.grammar_masks import (
    BatchedBitmaskMixin,
    TimeSpent,
    timed,
)
from openai_frontend.engines.vllm.stats import StatsMixin


class GrammarQuotaMixin:
    """Limits constrained requests to half of the engine's slots while other requests run or wait.

    Each constrained request adds about 35 us to every step, for its bitmask and its token, which
    delays all tokens: 200 of them take a third of a step on a CPU. So the others wait for a slot.
    """

    running: list[Any]
    waiting: Any  # a queue of requests
    max_num_running_reqs: int
    _room: int = 0  # for constrained requests, in this step

    def schedule(self, *given: Any, **named: Any) -> Any:
        slots = self.max_num_running_reqs
        constrained = sum([request.use_structured_output for request in self.running])
        if constrained < len(self.running) or not all(
            _is_constrained(each) for each in self.waiting
        ):
            slots = max(1, slots // 2)
        self._room = slots - constrained
        return super().schedule(*given, **named)  # type: ignore[misc]

    def _handle_blocked_waiting_request(self, request: Any) -> bool:
        return self._let_in(request, super()._handle_blocked_waiting_request)  # type: ignore[misc]

    def _try_promote_blocked_waiting_request(self, request: Any) -> bool:
        """The name of this method until vLLM 0.30."""
        return self._let_in(request, super()._try_promote_blocked_waiting_request)  # type: ignore[misc]

    def _let_in(self, request: Any, decide: Callable[[Any], bool]) -> bool:
        waits_for_grammar = request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        if waits_for_grammar and self._room <= 0 and not _has_failed(request):
            return False
        let_in = decide(request)
        self._room -= waits_for_grammar and let_in
        return let_in


class GrammarFailureMixin:
    """Marks the last output of a request whose grammar failed: if it did not compile, vLLM ends it
    like any request that failed, without a reason; if llguidance reached a limit within the answer,
    vLLM ends it as if it were complete. So marked is also a request whose grammar took too long,
    and one whose `allowed_token_ids` leave no token that the grammar allows.
    """

    running: list[Any]
    _failed: set[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._failed = set()

    def _let_in(self, request: Any, decide: Callable[[Any], bool]) -> bool:
        waits_for_grammar = request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        if waits_for_grammar and _has_failed(request):
            self._failed.add(request.request_id)
        return super()._let_in(request, decide)  # type: ignore[misc,no-any-return]

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM's hook after a step, which ends the requests that have failed before it."""
        failed, self._failed = self._failed, set()
        running = list(self.running)  # vLLM forgets requests that end with this step
        outputs = super().update_from_output(*args, **kwargs)  # type: ignore[misc]
        ended = {
            output.request_id: output
            for step in outputs.values()
            for output in step.outputs
            if output.finish_reason is not None
        }
        for request_id in failed & ended.keys():
            ended[request_id].stop_reason = GRAMMAR_FAILED
        for request in running if ended else ():
            output = ended.get(request.request_id)
            if output is not None and _has_broken(request):
                _mark_broken(output)
            elif output is not None and _had_no_token(request, output):
                output.stop_reason = GRAMMAR_EXCLUDED
        return outputs


def _is_constrained(request: Any) -> bool:
    return bool(request.use_structured_output)


def _has_failed(request: Any) -> bool:
    return isinstance(request.structured_output_request.grammar, Exception)


def _has_broken(request: Any) -> bool:
    """Whether the grammar of a running request took too long, or llguidance gave it up: it then
    allows only the end.
    """
    constraint = request.structured_output_request
    if constraint is None:
        return False
    matcher = getattr(constraint.grammar, "ll_matcher", None)
    return getattr(constraint.grammar, "is_too_slow", False) or (
        matcher is not None and bool(matcher.get_error())
    )


def _had_no_token(request: Any, output: Any) -> bool:
    """Whether vLLM gave up a request because the sampled token was none of its grammar's."""
    return bool(
        output.finish_reason == FinishReason.ERROR
        and _is_constrained(request)
        and request.sampling_params.allowed_token_ids
    )


def _mark_broken(output: Any) -> None:
    """An answer that `max_tokens` cuts is a correct beginning."""
    if output.finish_reason != FinishReason.LENGTH:
        output.finish_reason, output.stop_reason = FinishReason.ERROR, GRAMMAR_EXCEEDED


# Long enough for most answers. The gateway sees meanwhile that the engine works, and counts what a
# cancelled request has generated.
MAX_HOLD_S = 0.5
# An output with nothing but tokens has None in all of these fields.
_others = attrgetter(
    *set(EngineCoreOutput.__struct_fields__)
    - {"request_id", "new_token_ids", "trace_headers", "num_nans_in_logits"}
)


@dataclass(slots=True)
class _HeldTokens:
    """The tokens of one request that no output has had yet."""

    token_ids: list[int]
    since_s: float  # monotonic


class WholeOutputMixin:
    """Sends the tokens of a request that does not stream together, instead of one in each step.

    Its first and last tokens are sent with their step, the others after at most `MAX_HOLD_S`. Sent
    with their step are also outputs with more than tokens, such as log probabilities, and those of
    requests with stop strings, because only the gateway recognises these.
    """

    requests: Any
    _held: dict[str, _HeldTokens]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._held = {}

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM's hook after a step: the outputs by client."""
        outputs = super().update_from_output(*args, **kwargs)  # type: ignore[misc]
        now_s = time.monotonic()
        for client, step in list(outputs.items()):
            step.outputs = [each for each in step.outputs if self._is_due(each, now_s)]
            if not step.outputs and step.scheduler_stats is None and not step.finished_requests:
                del outputs[client]
        return outputs

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, *args: Any, **kwargs: Any
    ) -> Any:
        """vLLM's hook when requests are cancelled; None: all of them."""
        if isinstance(request_ids, str):
            request_ids = (request_ids,)
        elif request_ids is not None:
            request_ids = list(request_ids)
        for each in list(self._held) if request_ids is None else request_ids:
            self._held.pop(each, None)
        return super().finish_requests(request_ids, *args, **kwargs)  # type: ignore[misc]

    def _is_due(self, output: Any, now_s: float) -> bool:
        """Whether to send an output, which then has the tokens held before it."""
        held = self._held.pop(output.request_id, None)
        if held is not None:
            held.token_ids += output.new_token_ids
            output.new_token_ids = held.token_ids
        if any(other is not None for other in _others(output)):
            return True
        if held is None:
            if not _is_whole(self.requests.get(output.request_id)):
                return True
            held = _HeldTokens(output.new_token_ids, now_s)
        elif now_s - held.since_s >= MAX_HOLD_S:
            return True
        self._held[output.request_id] = held
        return False


def _is_whole(request: Any) -> bool:
    """Whether the client of a request gets nothing before its end."""
    if request is None or (params := request.sampling_params) is None:
        return False
    return params.output_kind == RequestOutputKind.FINAL_ONLY and not params.stop


_FIELDS = {
    StructuredOutputOptions.REGEX: "regex",
    StructuredOutputOptions.GRAMMAR: "grammar",
}
# vLLM converts choices to a grammar if xgrammar accepts them.
_LLGUIDANCE = (StructuredOutputOptions.JSON, StructuredOutputOptions.CHOICE)
_TIMED_GRAMMARS = 1024
_CACHED = 16  # grammars for llguidance, of some megabytes each


def scheduler(*, vllm_config: Any, structured_output_manager: Any, **options: Any) -> Any:
    """Create vLLM's scheduler, with both grammar backends if the config uses xgrammar for schemas:
    vLLM's XgrammarBackend lacks the filter for control characters.

    The process of every engine calls this, after it has loaded the model.
    """
    processes.end_with_parent()
    config = vllm_config.structured_outputs_config
    if prepares_grammars(config):
        structured_output_manager.backend = AutoBackend(
            vllm_config,
            structured_output_manager.tokenizer,
            vllm_config.model_config.get_vocab_size(),
        )
    kind = _AsyncScheduler if vllm_config.scheduler_config.async_scheduling else _Scheduler
    return kind(
        vllm_config=vllm_config, structured_output_manager=structured_output_manager, **options
    )


class _Scheduler(
    WholeOutputMixin,
    StatsMixin,
    GrammarFailureMixin,
    GrammarQuotaMixin,
    BatchedBitmaskMixin,
    Scheduler,  # type: ignore[misc]
):
    pass


class _AsyncScheduler(
    WholeOutputMixin,
    StatsMixin,
    GrammarFailureMixin,
    GrammarQuotaMixin,
    BatchedBitmaskMixin,
    AsyncScheduler,  # type: ignore[misc]
):
    pass


class AutoBackend(StructuredOutputBackend):  # type: ignore[misc]  # vLLM's types are not followed
    """Compiles with xgrammar what xgrammar accepts, and the rest with llguidance.

    JSON schemas for xgrammar are structural tags by now, and those for llguidance Lark grammars
    (`grammar_preprocess.prepare`).
    """

    def __init__(self, vllm_config: Any, tokenizer: Any, vocab_size: int) -> None:
        """Both backends are created on first use: about 0.1 s each."""
        # llguidance includes added tokens, and all bitmasks have one width
        super().__init__(vllm_config, tokenizer, max(vocab_size, len(tokenizer)))
        self._made: dict[type, Any] = {}
        # Kept after a grammar's requests, so that one that took too long is not tried again
        self._spent = functools.lru_cache(_TIMED_GRAMMARS)(lambda *_: TimeSpent())

    def compile_grammar(self, request_type: Any, grammar_spec: str, **options: Any) -> Any:
        """`options`: since vLLM 0.28, the request's `stop_token_ids`."""
        kind: type = CachedGuidanceBackend
        if _xgrammar_takes(request_type, grammar_spec):
            kind = self._xgrammar_for(grammar_spec)
        backend = self._backend(kind)
        grammar = backend.compile_grammar(request_type, grammar_spec, **options)
        return timed(grammar, self._spent(request_type, grammar_spec))

    def allocate_token_bitmask(self, max_num_seqs: int) -> Any:
        import torch

        return torch.full((max_num_seqs, (self.vocab_size + 31) // 32), -1, dtype=torch.int32)

    def destroy(self) -> None:
        for backend in self._made.values():
            backend.destroy()

    def _xgrammar_for(self, grammar_spec: str) -> type:
        if not LENGTH.search(grammar_spec):
            return TextBackend
        special = special_tokens(self.tokenizer).values()
        named = any(json.dumps(text)[1:-1] in grammar_spec for text in special)
        return NoTabsBackend if named else CountedBackend

    def _backend(self, kind: type) -> Any:
        if kind not in self._made:
            self._made[kind] = kind(self.vllm_config, self.tokenizer, self.vocab_size)
        return self._made[kind]


class CachedGuidanceBackend(GuidanceBackend):  # type: ignore[misc]
    """llguidance with a cache, as xgrammar has one: compiling 150 functions takes 0.1 s, and their
    first mask 3 ms.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._cached = functools.lru_cache(_CACHED)(self._compiled)

    def compile_grammar(
        self, request_type: Any, grammar_spec: str, stop_token_ids: Iterable[int] | None = None
    ) -> Any:
        grammar = self._cached(request_type, grammar_spec, frozenset(stop_token_ids or ()))
        return replace(grammar, ll_matcher=grammar.ll_matcher.deep_copy())

    def _compiled(self, request_type: Any, grammar_spec: str, stops: frozenset[int]) -> Any:
        options = {"stop_token_ids": set(stops)} if stops else {}
        grammar = super().compile_grammar(request_type, grammar_spec, **options)
        matcher = grammar.ll_matcher
        matcher.compute_bitmask()  # copies share what it finds
        if error := matcher.get_error():
            raise ValueError(error)  # vLLM would only log it, and the output would be empty
        return grammar


class TextBackend(XgrammarBackend):  # type: ignore[misc]  # vLLM's types are not followed
    """xgrammar without control characters other than tab and line breaks, which no output needs."""

    left_out = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")

    def __post_init__(self) -> None:
        """Create the compilers again: they keep the vocabulary that they were created with."""
        super().__post_init__()
        import xgrammar
        from vllm.utils.mistral import is_mistral_tokenizer

        if is_mistral_tokenizer(self.tokenizer):
            return  # vLLM reads Mistral vocabularies differently
        whole = xgrammar.TokenizerInfo.from_huggingface(self.tokenizer, vocab_size=self.vocab_size)
        if hasattr(self, "full_vocab_compiler"):
            # Since vLLM 0.33, only structural tags and Lark grammars may contain special tokens.
            self.full_vocab_compiler = self._text_compiler(whole)
            whole = self._filter_special_tokens(self.tokenizer, whole)
        self.compiler = self._text_compiler(whole)

    def _tokens(self, whole: Any) -> list[bytes]:
        """The vocabulary; tokens that no output may contain are empty."""
        return [b"" if self.left_out.search(token) else token for token in whole.decoded_vocab]

    def _text_compiler(self, whole: Any) -> Any:
        """A compiler whose vocabulary lacks the tokens that are left out."""
        import xgrammar
        from vllm import envs

        text = xgrammar.TokenizerInfo(
            self._tokens(whole),
            vocab_type=xgrammar.VocabType.RAW,  # tokens are already decoded
            vocab_size=self.vocab_size,
            stop_token_ids=whole.stop_token_ids,
            add_prefix_space=whole.add_prefix_space,
        )
        return xgrammar.GrammarCompiler(
            text,
            max_threads=8,
            cache_enabled=True,
            cache_limit_bytes=envs.VLLM_XGRAMMAR_CACHE_MB * 1024 * 1024,
        )


def _xgrammar_takes(request_type: Any, grammar_spec: str) -> bool:
    if request_type not in _FIELDS:
        return request_type not in _LLGUIDANCE
    if grammar_spec.startswith(lark.HEADER):
        return False
    field = _FIELDS[request_type]
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import StructuredOutputsParams

    constraint = StructuredOutputsParams(**{field: grammar_spec})
    try:
        validate_xgrammar_grammar(SamplingParams(structured_outputs=constraint))
    except VLLMValidationError:
        return False
    return True


class NoTabsBackend(TextBackend):
    """TextBackend without tabs, for schemas with strings of bounded length.

    In such strings, xgrammar accepts any control character except line breaks, and JSON allows
    none.
    """

    left_out = re.compile(rb"[\x00-\x09\x0b\x0c\x0e-\x1f]")

    def _tokens(self, whole: Any) -> list[bytes]:
        tokens = super()._tokens(whole)
        if versions.allows_invalid_utf8():
            return [token if _is_text(token) else b"" for token in tokens]
        return tokens


class CountedBackend(NoTabsBackend):
    """NoTabsBackend without special tokens, which count as characters but are not in the text.

    For constraints that name none of them, as the tags of some families do.
    """

    def _tokens(self, whole: Any) -> list[bytes]:
        left_out = special_tokens(self.tokenizer).keys() - set(whole.stop_token_ids)
        return [b"" if i in left_out else token for i, token in enumerate(super()._tokens(whole))]


def _is_text(token: bytes) -> bool:
    """Whether the token is not a part of a character."""
    try:
        token.decode()
    except UnicodeDecodeError:
        return False
    return True
