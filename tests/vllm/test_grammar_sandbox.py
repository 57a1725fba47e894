"""GrammarPreparer that are tried in a process of their own; no engine runs."""

import json
import os
import signal
import time
from collections.abc import Iterator
from types import SimpleNamespace

import psutil
import pytest

from openai_frontend.engines.engine import EngineError
from openai_frontend.engines.vllm.grammar_preprocess import GrammarSpec, is_lark
from openai_frontend.engines.vllm.grammar_sandbox import GrammarSandbox, SandboxLimitExceeded
from openai_frontend.engines.vllm.grammars import GrammarPreparer
from tests.gateway_process import ROOT
from tests.vllm.slow_grammar import SLOW_GRAMMAR

pytestmark = pytest.mark.engine

DEMO = ROOT / "model_repository" / "demo" / "1" / "weights"

HOSTILE = GrammarSpec("grammar", SLOW_GRAMMAR)
VALID = GrammarSpec("regex", "[a-z]+")


def vocabulary() -> str:
    """The demo model's tokens: text that has been learned, not letters at random."""
    import xgrammar

    tokens = json.loads((DEMO / "tokenizer.json").read_text())["model"]["vocab"]
    text: str = xgrammar.TokenizerInfo(
        sorted(tokens, key=tokens.get),
        vocab_type=xgrammar.VocabType.BYTE_LEVEL,
        stop_token_ids=[tokens["<|endoftext|>"]],
    ).serialize_json()
    return text


@pytest.fixture(scope="module")
def trials() -> Iterator[GrammarSandbox]:
    started = GrammarSandbox(cpu_s=1)
    yield started
    started.close()


def tried(trials: GrammarSandbox, form: GrammarSpec) -> GrammarSpec:
    return trials.submit(form, vocabulary).result(timeout=30)


def test_what_passes(trials: GrammarSandbox):
    """A form that compiles comes back as the engine shall have it."""
    assert tried(trials, VALID) == VALID
    ready = tried(trials, GrammarSpec("json", '{"type": "integer"}'))
    assert ready.kind == "structural_tag"
    assert json.loads(ready.text)["format"]["max_whitespace_cnt"] == 1


@pytest.mark.parametrize("text", ["root ::= root", "root ::= a\na ::= root"])
def test_what_nothing_matches(trials: GrammarSandbox, text: str):
    """A grammar by which there is no first token is refused; one of the empty text alone is not."""
    with pytest.raises(ValueError, match="no text matches it"):
        tried(trials, GrammarSpec("grammar", text))
    assert tried(trials, GrammarSpec("grammar", 'root ::= ""')).kind == "grammar"


def test_what_takes_too_long(trials: GrammarSandbox):
    """It ends after a second, and what comes after it does not wait for it."""
    begun = time.perf_counter()
    hostile = trials.submit(HOSTILE, vocabulary)

    assert tried(trials, VALID) == VALID
    assert not hostile.done()
    with pytest.raises(
        SandboxLimitExceeded, match="structured_outputs: compiling it takes more than 1 s"
    ):
        hostile.result(timeout=30)
    assert time.perf_counter() - begun < 5


def test_what_makes_no_headway(trials: GrammarSandbox):
    """The limit on a processor's time has one on the clock beside it; the next is tried."""
    assert tried(trials, VALID) == VALID
    hostile = trials.submit(HOSTILE, vocabulary)
    assert trials._process is not None
    process = psutil.Process(trials._process.popen.pid)
    while not (forks := process.children()):
        time.sleep(0.001)
    forks[0].suspend()

    with pytest.raises(
        SandboxLimitExceeded, match="structured_outputs: compiling it takes more than 1 s"
    ):
        hostile.result(timeout=30)
    assert tried(trials, VALID) == VALID


def test_what_takes_too_much_memory():
    """It is refused with the limit, and the next one is tried."""
    trials = GrammarSandbox(memory_mib=16)
    try:
        with pytest.raises(SandboxLimitExceeded, match="compiling it needs more than 16 MiB"):
            tried(trials, HOSTILE)
        assert tried(trials, VALID) == VALID
    finally:
        trials.close()


@pytest.mark.parametrize(
    "form",
    [
        GrammarSpec("grammar", "root ::= ("),
        GrammarSpec("json", '{"type": "string", "pattern": "("}'),
        GrammarSpec("structural_tag", '{"type": "structural_tag", "format": {"type": "no"}}'),
    ],
    ids=str,
)
def test_what_is_wrong(trials: GrammarSandbox, form: GrammarSpec):
    """The process tells the reason."""
    with pytest.raises(ValueError, match="structured_outputs: "):
        tried(trials, form)


def test_a_process_that_has_died():
    """What it had is refused as the server's failure, and another takes its place."""
    trials = GrammarSandbox()
    try:
        assert tried(trials, VALID) == VALID
        waiting = trials.submit(HOSTILE, vocabulary)
        assert trials._process is not None
        os.killpg(trials._process.popen.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="process died"):
            waiting.result(timeout=30)
        assert tried(trials, VALID) == VALID
    finally:
        trials.close()


class Flaky(GrammarPreparer):
    """The model's tokens cannot be read the first time."""

    reads = 0

    def _vocabulary(self) -> str:
        self.reads += 1
        if self.reads == 1:
            raise RuntimeError("no memory for the tokens")
        return vocabulary()


async def test_a_fault_that_is_not_the_forms():
    """It is told, and not remembered: the same form passes another time."""
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams

    config = SimpleNamespace(backend="auto", disable_any_whitespace=False)
    engine = SimpleNamespace(vllm_config=SimpleNamespace(structured_outputs_config=config))
    grammars = Flaky(engine)
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex=VALID.text))
    try:
        with pytest.raises(RuntimeError, match="no memory"):
            await grammars.prepare(params)
        await grammars.prepare(params)
    finally:
        grammars.close()

    assert grammars.reads == 2


def test_nothing_is_left():
    """Closing ends the process, and what it was trying."""
    trials = GrammarSandbox()
    assert tried(trials, VALID) == VALID
    trials.submit(HOSTILE, vocabulary)
    process = trials._process
    assert process is not None

    trials.close()

    with pytest.raises(ProcessLookupError):
        os.killpg(process.popen.pid, 0)


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "a"', 'root ::= "a"', '# root ::= "a"\nstart: "a"', "", 'a: "::="', "a\n\nb ::= c",
        '// ::=\nstart: /#::=/', "start: x\r\n::= y",
    ],
)  # fmt: skip
def test_lark_is_told_from_ebnf_as_vllm_does(grammar: str):
    """The engine's process asks vLLM."""
    from vllm.v1.structured_output.utils import grammar_is_likely_lark

    assert is_lark(grammar) == (grammar_is_likely_lark(grammar) or not grammar)
