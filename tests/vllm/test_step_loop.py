"""How requests end that the engine aborts or that fail in the step loop; no engine runs."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from openai_frontend.engines.engine import ConstraintError, EngineError
from openai_frontend.engines.vllm import request_state, zmq_io
from openai_frontend.engines.vllm import step_loop as step_loop_module
from openai_frontend.engines.vllm.grammars.backends import GRAMMAR_EXCEEDED, GRAMMAR_FAILED
from openai_frontend.engines.vllm.text_decoding import OutputText, TextDecoding
from openai_frontend.generation import CompletionDelta
from openai_frontend.logs.formatters import make_formatter
from openai_frontend.triton import error_codes
from tests.gateway_process import ROOT

pytestmark = pytest.mark.engine


class Sink:
    """Records its deltas and its failure."""

    cancelled = False

    logprob_arrays = False

    counts_prompt = False

    def __init__(self) -> None:
        self.deltas: list[CompletionDelta] = []
        self.error: Exception | None = None

    def send(self, delta: CompletionDelta) -> None:
        self.deltas.append(delta)

    def send_text(self, text: str, token_ids: Any) -> None:
        self.send(CompletionDelta(text, token_ids))

    def text_stream(self, step: Any, tokenizer: Any, logprobs: int = 0) -> None:
        """A stream that receives each delta."""

    def count_prompt(self, counts: Any) -> None:
        """Not asked for."""

    def fail(self, error: Exception) -> None:
        self.error = error


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(ROOT / "model_repository" / "demo" / "1" / "weights")


def constrained() -> Any:
    """A request with a grammar, as vLLM represents it."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    params = SamplingParams(
        structured_outputs=StructuredOutputsParams(regex="a+"),
        output_kind=RequestOutputKind.DELTA,
    )
    common: dict[str, Any] = {"request_id": "r", "prompt_token_ids": [1, 2], "mm_features": None}
    return SimpleNamespace(sampling_params=params, **common)


def text_of(tokenizer: Any, request: Any) -> OutputText:
    decoding = TextDecoding.of(tokenizer)
    assert decoding is not None
    return decoding.text(request, request.prompt_token_ids, whole=False)


STEPS = [
    ([], "kv load", EngineError),
    ([], None, EngineError),
    ([], GRAMMAR_FAILED, ConstraintError),
    ([[40]], GRAMMAR_EXCEEDED, ConstraintError),
    ([[40]], None, EngineError),
    ([[40, 41]], None, EngineError),
]


@pytest.mark.parametrize("collected", [False, True])
@pytest.mark.parametrize(("token_ids", "stop_reason", "kind"), STEPS)
def test_request_failed_by_the_engine(tokenizer, token_ids, stop_reason, kind, collected):
    """The constraint is at fault only if the engine's scheduler says so, also before a token: the
    same if vLLM's OutputProcessor collects the request.
    """
    from vllm.v1.engine import EngineCoreOutput, FinishReason

    sink, request = Sink(), constrained()
    if collected:
        collector = request_state.DeltaCollector(sink, request)
        for each in [*map(output, token_ids), output([], "error", stop_reason)]:
            collector.put(each)
    else:
        stream = request_state.TextRequestState(sink, request, text_of(tokenizer, request), 2)
        for ids in token_ids:
            stream.advance(EngineCoreOutput("r", ids))
        ended = {"finish_reason": FinishReason.ERROR, "stop_reason": stop_reason}
        stream.advance(EngineCoreOutput("r", [], **ended))

    assert len(sink.deltas) == len(token_ids)
    assert type(sink.error) is kind


def refusals() -> dict[str, tuple[Exception, type[Exception], int | None]]:
    """What vLLM 0.33 says of a request that it refuses after it has accepted it."""
    from vllm.exceptions import GenerationError, RetryableRequestError, VLLMValidationError

    return {
        "invalid": (VLLMValidationError("prompt: too long"), ValueError, None),
        "failed": (GenerationError("no memory"), EngineError, error_codes.INTERNAL),
        "paused": (RetryableRequestError("paused"), EngineError, error_codes.UNAVAILABLE),
    }


@pytest.mark.parametrize("name", ["invalid", "failed", "paused"])
@pytest.mark.parametrize("collected", [False, True])
def test_reason_of_a_refused_request_reaches_the_client(tokenizer, name, collected):
    """It is neither lost nor reported as the end of the engine."""
    from vllm.v1.engine import FinishReason

    raised, kind, code = refusals()[name]
    sink, request = Sink(), constrained()
    request.sampling_params.structured_outputs = None
    if collected:
        request_state.DeltaCollector(sink, request).put(raised)
    else:
        request_state.TextRequestState(sink, request, text_of(tokenizer, request), 2).advance(
            SimpleNamespace(
                prefill_stats=None,
                new_token_ids=[],
                finish_reason=FinishReason.ERROR,
                error=SimpleNamespace(to_exception=lambda: raised),
            )
        )

    assert isinstance(sink.error, kind)
    assert str(raised) in str(sink.error)
    assert getattr(sink.error, "code", None) == code
    assert sink.deltas == []


def output(
    token_ids: list[int], finish_reason: str | None = None, stop_reason: str | None = None
) -> Any:
    """An output of vLLM's OutputProcessor for one step."""
    from vllm.outputs import CompletionOutput, RequestOutput

    completion = CompletionOutput(
        index=0,
        text="",
        token_ids=token_ids,
        cumulative_logprob=None,
        logprobs=None,
        finish_reason=finish_reason,
        stop_reason=stop_reason,
    )
    return RequestOutput(
        request_id="r",
        prompt=None,
        prompt_token_ids=[1, 2],
        prompt_logprobs=None,
        outputs=[completion],
        finished=finish_reason is not None,
    )


PROMPT = "the canary sings at noon"


def step_loop() -> step_loop_module.StepLoop:
    """Return a step loop that makes no calls to its engine."""
    config = SimpleNamespace(kv_transfer_config=None)
    model_config = SimpleNamespace(max_model_len=64, get_vocab_size=lambda: 512)
    engine = SimpleNamespace(
        engine_core=SimpleNamespace(),
        output_processor=None,
        vllm_config=config,
        model_config=model_config,
    )
    engine.engine_core.abort_requests_async = lambda _: asyncio.sleep(0)
    return step_loop_module.StepLoop(engine, None, model="demo")  # type: ignore[arg-type]


async def test_steps_come_from_vllms_task_if_pyzmq_is_not_supported(monkeypatch):
    """And requests go through its client, because there is no writer."""
    monkeypatch.setattr(zmq_io, "is_supported", lambda: False)
    loop, steps, seen = step_loop(), asyncio.Queue[str](), asyncio.Queue[str]()
    loop._core.get_output_async = steps.get
    monkeypatch.setattr(loop, "_step", seen.put_nowait)

    loop.start()
    steps.put_nowait("a step")
    async with asyncio.timeout(60):
        assert await seen.get() == "a step"

    assert loop._writer is None
    loop.close()
    await asyncio.sleep(0)
    assert loop._steps is not None
    await asyncio.wait([loop._steps])


async def test_request_text_is_not_logged(monkeypatch, caplog):
    """An error of native code may quote the answer, so the log omits its message."""
    native = SimpleNamespace(advance_all=lambda outputs, streams: ([], [("r", PROMPT)]))
    monkeypatch.setattr(step_loop_module, "_core", native)
    loop, sink = step_loop(), Sink()
    loop._streams["r"] = SimpleNamespace(sink=sink)  # type: ignore[assignment]

    loop._step(SimpleNamespace(scheduler_stats=None, outputs=[]))

    (record,) = caplog.records
    assert PROMPT not in make_formatter("text").format(record)
    assert isinstance(sink.error, EngineError)


async def test_failure_of_the_step_loop_quotes_no_answer():
    """Its reason appears in logs, health checks and other clients' errors."""

    async def failing() -> None:
        raise ValueError(PROMPT)

    loop = step_loop()
    await loop._run(asyncio.create_task(failing()))

    assert loop.failure == "the step loop failed: ValueError"


class FailingSink(Sink):
    """Fails to send."""

    def send(self, delta: CompletionDelta) -> None:
        raise RuntimeError("no room")


def with_logprobs(request_id: str) -> Any:
    """A request that vLLM's OutputProcessor collects."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    return EngineCoreRequest(
        request_id=request_id,
        external_req_id=request_id,
        prompt_token_ids=[1, 2],
        mm_features=None,
        sampling_params=SamplingParams(logprobs=0, output_kind=RequestOutputKind.DELTA),
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )


@pytest.mark.parametrize("finished", [False, True])
async def test_collected_request_fails_alone(tokenizer, finished):
    """vLLM forgets it, and aborts it unless it has ended; the other requests of the
    step continue.
    """
    from vllm.v1.engine import EngineCoreOutput, FinishReason
    from vllm.v1.engine.output_processor import OutputProcessor

    loop, aborted = step_loop(), []
    loop._core.abort_requests_async = lambda ids: asyncio.sleep(0, aborted.extend(ids))
    loop._processor = OutputProcessor(tokenizer, log_stats=False)
    sinks = {"bad": FailingSink(), "good": Sink()}
    for request_id, sink in sinks.items():
        loop._register(with_logprobs(request_id), sink, [1, 2])
    reason = FinishReason.STOP if finished else None

    loop._step(
        SimpleNamespace(
            scheduler_stats=None,
            timestamp=0.0,
            outputs=[
                EngineCoreOutput(request_id="bad", new_token_ids=[40], finish_reason=reason),
                EngineCoreOutput(request_id="good", new_token_ids=[40]),
            ],
        )
    )

    assert isinstance(sinks["bad"].error, RuntimeError)
    assert [delta.token_ids for delta in sinks["good"].deltas] == [[40]]
    assert set(loop._collected) == set(loop._processor.request_states) == {"good"}
    assert aborted == ([] if finished else ["bad"])
