"""The scheduler class that vLLM's process uses; no engine runs."""

from types import SimpleNamespace
from typing import Any

import pytest

from openai_frontend.engines.vllm.grammars.backends import GRAMMAR_EXCEEDED, GRAMMAR_FAILED
from tests.gateway_process import ROOT

pytestmark = pytest.mark.engine


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the constructor: vLLM's schedulers need an engine's whole config."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    def made_of_nothing(_: Any, **given: Any) -> None:
        assert given.keys() == {"vllm_config", "structured_output_manager"}

    for kind in (Scheduler, AsyncScheduler):
        monkeypatch.setattr(kind, "__init__", made_of_nothing)


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_scheduler_has_all_mixins(asynchronous: bool) -> None:
    """Either of vLLM's schedulers comes after the project's mixins, and each mixin works in the
    engine.
    """
    from vllm.config import StructuredOutputsConfig
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    from openai_frontend.engines.vllm.processes.grammar_masks import BatchedBitmaskMixin
    from openai_frontend.engines.vllm.processes.scheduler import (
        GrammarQuotaMixin,
        WholeOutputMixin,
        scheduler,
    )
    from openai_frontend.engines.vllm.stats import StatsMixin

    config = SimpleNamespace(
        structured_outputs_config=StructuredOutputsConfig(backend="guidance"),
        scheduler_config=SimpleNamespace(async_scheduling=asynchronous),
    )

    made = scheduler(vllm_config=config, structured_output_manager=None)

    assert isinstance(made, AsyncScheduler) is asynchronous
    for part in (WholeOutputMixin, StatsMixin, GrammarQuotaMixin, BatchedBitmaskMixin):
        assert isinstance(made, part)


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize(
    ("backend", "filtered"), [("auto", True), ("xgrammar", True), ("guidance", False)]
)
def test_xgrammar_never_runs_without_the_control_character_filter(
    backend: str, filtered: bool
) -> None:
    """An explicit `xgrammar` gets the same backend as `auto`; other backends remain vLLM's own."""
    from vllm.config import StructuredOutputsConfig

    from openai_frontend.engines.vllm.processes.scheduler import AutoBackend, scheduler

    config = SimpleNamespace(
        structured_outputs_config=StructuredOutputsConfig(backend=backend),
        scheduler_config=SimpleNamespace(async_scheduling=False),
        model_config=SimpleNamespace(get_vocab_size=lambda: 8),
    )
    manager = SimpleNamespace(backend=None, tokenizer=range(8))

    scheduler(vllm_config=config, structured_output_manager=manager)

    assert isinstance(manager.backend, AutoBackend) is filtered


@pytest.mark.parametrize("compilers", [1, 2])
def test_every_compiler_lacks_control_characters(
    monkeypatch: pytest.MonkeyPatch, compilers: int
) -> None:
    """vLLM 0.33 has a second one, for structural tags, which alone has the special tokens."""
    from transformers import AutoTokenizer
    from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

    from openai_frontend.engines.vllm.processes.scheduler import NoTabsBackend

    seen: list[Any] = []
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "model_repository" / "demo" / "1" / "weights")
    special = tokenizer.all_special_ids[0]

    def vllms(backend: Any) -> None:
        backend.compiler = None
        if compilers == 2:
            backend.full_vocab_compiler = None

    def without_special_tokens(_: Any, info: Any) -> Any:
        tokens = list(info.decoded_vocab)
        tokens[special] = b""
        return SimpleNamespace(
            decoded_vocab=tokens,
            stop_token_ids=info.stop_token_ids,
            add_prefix_space=info.add_prefix_space,
        )

    def compiler(info: Any, **_: Any) -> Any:
        seen.append(info)
        return info

    monkeypatch.setattr(XgrammarBackend, "__post_init__", vllms)
    monkeypatch.setattr(
        XgrammarBackend,
        "_filter_special_tokens",
        staticmethod(without_special_tokens),
        raising=False,
    )
    monkeypatch.setattr("xgrammar.GrammarCompiler", compiler)
    backend: Any = object.__new__(NoTabsBackend)
    backend.tokenizer, backend.vocab_size = tokenizer, len(tokenizer)
    backend.__post_init__()

    assert len(seen) == compilers
    assert backend.compiler is seen[-1]
    for info in seen:
        assert not any(b"\t" in token or b"\x00" in token for token in info.decoded_vocab)
    if compilers == 2:
        assert backend.full_vocab_compiler is seen[0]
        assert seen[0].decoded_vocab[special] != b""
        assert seen[1].decoded_vocab[special] == b""


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ('{"type": "string"}', "TextBackend"),
        ('{"type": "string", "maxLength": 9}', "CountedBackend"),
        ('{"begin": "<|endoftext|>", "schema": {"maxLength": 9}}', "NoTabsBackend"),
    ],
)
def test_bounded_strings_have_no_special_tokens(spec: str, kind: str) -> None:
    """They would count, but are not in the text; unless the constraint itself names one."""
    from transformers import AutoTokenizer

    from openai_frontend.engines.vllm.processes.scheduler import AutoBackend

    tokenizer = AutoTokenizer.from_pretrained(ROOT / "model_repository" / "demo" / "1" / "weights")

    assert AutoBackend(None, tokenizer, 8)._xgrammar_for(spec).__name__ == kind


def test_special_token_is_not_allowed_in_a_bounded_string() -> None:
    """Stop tokens stay: they end the output."""
    import xgrammar
    from transformers import AutoTokenizer

    from openai_frontend.engines.vllm.processes.scheduler import CountedBackend

    tokenizer = AutoTokenizer.from_pretrained(ROOT / "model_repository" / "demo" / "1" / "weights")
    whole = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=len(tokenizer))
    backend: Any = object.__new__(CountedBackend)
    backend.tokenizer = tokenizer

    tokens = backend._tokens(whole)

    end = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    (stop,) = whole.stop_token_ids
    assert tokens[end] == b""
    assert tokens[stop] == b"<|im_end|>"


class FakeScheduler:
    """Hands out the outputs of one request, step by step."""

    def __init__(self, **params: Any) -> None:
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        params = {"output_kind": RequestOutputKind.FINAL_ONLY, **params}
        self.requests = {"a": SimpleNamespace(sampling_params=SamplingParams(**params))}
        self.finished: list[Any] = []
        self.running: list[Any] = []

    def update_from_output(self, *outputs: Any, stats: Any = None) -> Any:
        from vllm.v1.engine import EngineCoreOutputs

        return {0: EngineCoreOutputs(outputs=list(outputs), scheduler_stats=stats)}

    def finish_requests(self, request_ids: Any, status: Any) -> Any:
        self.finished.append(request_ids)
        return []


def test_output_of_a_request_whose_grammar_failed_is_marked() -> None:
    """That of one that fails at the same step for another reason is not."""
    from vllm.v1.engine import EngineCoreOutput, FinishReason
    from vllm.v1.request import RequestStatus

    from openai_frontend.engines.vllm.processes.scheduler import (
        GrammarFailureMixin,
        GrammarQuotaMixin,
    )

    scheduler = type("Failing", (GrammarFailureMixin, GrammarQuotaMixin, FakeScheduler), {})()
    for name, grammar in (("a", ValueError("no")), ("b", None)):
        request = SimpleNamespace(
            request_id=name,
            status=RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
            structured_output_request=SimpleNamespace(grammar=grammar),
        )
        scheduler._let_in(request, lambda _: False)

    ends = [EngineCoreOutput(each, [], finish_reason=FinishReason.ERROR) for each in "ab"]
    scheduler.update_from_output(*ends)

    assert [each.stop_reason for each in ends] == [GRAMMAR_FAILED, None]


def test_answer_whose_grammar_broke_is_an_error() -> None:
    """llguidance allows only the end of an answer then, wherever it is. An answer that the limit
    cuts keeps its reason, and so do those of other grammars.
    """
    import llguidance
    from vllm.v1.engine import EngineCoreOutput, FinishReason

    from openai_frontend.engines.vllm.processes.scheduler import GrammarFailureMixin

    grammar = "start: /((a{1,100}){1,100}){1,100}/"
    broken, whole = (
        llguidance.LLMatcher(llguidance.LLTokenizer("byte"), grammar, log_level=0) for _ in range(2)
    )
    while broken.consume_token(ord("a")):
        broken.compute_bitmask()
    scheduler = type("Failing", (GrammarFailureMixin, FakeScheduler), {})()
    matchers = {"broken": broken, "cut": broken, "whole": whole, "xgrammar": None, "free": None}
    scheduler.running = [
        SimpleNamespace(
            request_id=name,
            structured_output_request=None
            if name == "free"
            else SimpleNamespace(grammar=SimpleNamespace(ll_matcher=matcher)),
        )
        for name, matcher in matchers.items()
    ]

    ends = [
        EngineCoreOutput(
            each, [2], finish_reason=FinishReason.LENGTH if each == "cut" else FinishReason.STOP
        )
        for each in matchers
    ]
    scheduler.update_from_output(*ends)

    reasons = [(str(each.finish_reason), each.stop_reason) for each in ends]
    assert reasons == [("error", GRAMMAR_EXCEEDED), ("length", None), *[("stop", None)] * 3]


def holding(**params: Any) -> Any:
    """A scheduler with WholeOutputMixin for request `a`, with these sampling parameters."""
    from openai_frontend.engines.vllm.processes.scheduler import WholeOutputMixin

    return type("Holding", (WholeOutputMixin, FakeScheduler), {})(**params)


def output(*token_ids: int, **fields: Any) -> Any:
    from vllm.v1.engine import EngineCoreOutput

    return EngineCoreOutput("a", list(token_ids), **fields)


def steps_of(scheduler: Any) -> list[list[int]]:
    from vllm.v1.engine import FinishReason
    from vllm.v1.metrics.stats import PrefillStats

    first = output(1, prefill_stats=PrefillStats())
    last = output(4, finish_reason=FinishReason.LENGTH)
    found = []
    for each in (first, output(2), output(3), last):
        step = scheduler.update_from_output(each)
        found += [each.new_token_ids for each in step[0].outputs] if step else []
    return found


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, [[1], [2, 3, 4]]),
        ({"stop": ["x"]}, [[1], [2], [3], [4]]),
        ({"output_kind": 1}, [[1], [2], [3], [4]]),  # RequestOutputKind.DELTA
    ],
)
def test_tokens_of_a_whole_answer_are_sent_with_its_end(
    params: dict[str, Any], expected: list[list[int]]
) -> None:
    """The first token is sent at once, because it has the statistics of the prompt; a step that
    sends nothing has no message at all. Only the gateway sees a stop string, and a stream sends
    each token.
    """
    from vllm.sampling_params import RequestOutputKind

    if "output_kind" in params:
        params = {"output_kind": RequestOutputKind(params["output_kind"])}

    assert steps_of(holding(**params)) == expected


def test_whole_answer_is_not_held_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai_frontend.engines.vllm.processes.scheduler.MAX_HOLD_S", 0)

    assert steps_of(holding()) == [[1], [2, 3], [4]]


def test_output_with_more_than_tokens_is_sent_with_its_step() -> None:
    """Here, log probabilities; they come with the tokens held before them."""
    scheduler = holding()
    with_logprobs = output(2, new_logprobs=object())

    steps = [scheduler.update_from_output(each) for each in (output(1), with_logprobs)]

    assert steps[0] == {}
    assert [each.new_token_ids for each in steps[1][0].outputs] == [[1, 2]]


def test_statistics_are_sent_without_outputs() -> None:
    statistics = object()

    step = holding().update_from_output(output(1), stats=statistics)

    assert step[0].outputs == []
    assert step[0].scheduler_stats is statistics


@pytest.mark.parametrize("cancelled", ["a", ["a"], iter(["a"]), None])
def test_cancelled_request_leaves_no_tokens(cancelled: Any) -> None:
    """Whatever form vLLM gives the ids in, and it gets them itself."""
    scheduler = holding()
    scheduler.update_from_output(output(1))

    scheduler.finish_requests(cancelled, None)

    assert scheduler._held == {}
    assert scheduler.finished[0] is None or list(scheduler.finished[0]) == ["a"]
