"""Trial compilation of grammars in a separate process; no engine runs."""

import json
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from openai_frontend.engines.engine import EngineError
from openai_frontend.engines.vllm.grammars import sandbox
from openai_frontend.engines.vllm.grammars.backends import GrammarPreparer
from openai_frontend.engines.vllm.grammars.preprocess import GrammarSpec
from openai_frontend.engines.vllm.grammars.sandbox import GrammarSandbox, SandboxLimitExceeded
from openai_frontend.engines.vllm.grammars.text_grammars import is_lark
from openai_frontend.engines.vllm.processes import children
from openai_frontend.runtime import helper_process
from openai_frontend.triton import error_codes
from tests.gateway_process import ROOT
from tests.vllm.slow_grammar import SLOW_GRAMMAR

pytestmark = pytest.mark.engine

DEMO = ROOT / "model_repository" / "demo" / "1" / "weights"

HOSTILE = GrammarSpec("grammar", SLOW_GRAMMAR)
VALID = GrammarSpec("regex", "[a-z]+")


def vocabulary() -> dict[str, Any]:
    """The demo model's tokens: a trained vocabulary, not random letters."""
    import xgrammar

    tokens = json.loads((DEMO / "tokenizer.json").read_text())["model"]["vocab"]
    info = xgrammar.TokenizerInfo(
        sorted(tokens, key=tokens.get),
        vocab_type=xgrammar.VocabType.BYTE_LEVEL,
        stop_token_ids=[tokens["<|endoftext|>"]],
    )
    return {"vocabulary": info.serialize_json(), "special_tokens": {}}


@pytest.fixture(scope="module")
def trials() -> Iterator[GrammarSandbox]:
    started = GrammarSandbox(cpu_s=4, wall_s=100)  # also enough on a busy machine
    yield started
    started.close()


def tried(trials: GrammarSandbox, form: GrammarSpec) -> GrammarSpec:
    return trials.submit(form, vocabulary).result(timeout=120)


def test_valid_grammar_is_returned_in_the_engines_form(trials: GrammarSandbox):
    assert tried(trials, VALID) == VALID
    ready = tried(trials, GrammarSpec("json", '{"type": "integer"}'))
    assert ready.kind == "structural_tag"
    assert json.loads(ready.text)["format"]["max_whitespace_cnt"] == 1


@pytest.mark.parametrize("text", ["root ::= root", "root ::= a\na ::= root"])
def test_grammar_that_matches_nothing_is_refused(trials: GrammarSandbox, text: str):
    """It allows no first token. A grammar that matches only the empty text is valid."""
    with pytest.raises(ValueError, match="no text matches it"):
        tried(trials, GrammarSpec("grammar", text))
    assert tried(trials, GrammarSpec("grammar", 'root ::= ""')).kind == "grammar"


def test_slow_grammar_is_stopped(trials: GrammarSandbox):
    """It stops after 4 s of CPU time; the next grammar does not wait for it."""
    hostile = trials.submit(HOSTILE, vocabulary)

    assert tried(trials, VALID) == VALID
    assert not hostile.done()
    with pytest.raises(
        SandboxLimitExceeded, match="structured_outputs: compiling it takes more than 4 s"
    ):
        hostile.result(timeout=120)


def suspended(trials: GrammarSandbox) -> Future[GrammarSpec]:
    """A compilation whose process is suspended, before its CPU time is used up: on a busy machine,
    one of several.
    """
    assert trials._process is not None
    process = psutil.Process(trials._process.process.pid)
    while True:
        hostile = trials.submit(HOSTILE, vocabulary)
        while not hostile.done():
            with suppress(psutil.NoSuchProcess):
                for fork in process.children():
                    fork.suspend()
                    return hostile
            time.sleep(0.001)


def test_stalled_compilation_is_not_the_grammars_fault():
    """The CPU time limit has a wall clock limit next to it. A machine that is too busy is a 503: it
    must not loosen the constraint of later requests. The next grammar is compiled.
    """
    trials = GrammarSandbox(wall_s=4)
    try:
        assert tried(trials, VALID) == VALID
        with pytest.raises(EngineError, match="too busy") as refused:
            suspended(trials).result(timeout=120)
        assert refused.value.code == error_codes.UNAVAILABLE
        assert tried(trials, VALID) == VALID
    finally:
        trials.close()


def test_grammar_that_needs_too_much_memory_is_refused():
    """The error has the limit, and the next grammar is compiled."""
    member = {"type": "object", "properties": {"a": {"type": "string"}, "b": {}}}
    fields = {f"p{i}": member for i in range(900)}
    trials = GrammarSandbox(memory_mib=16)
    try:
        with pytest.raises(SandboxLimitExceeded, match="compiling it needs more than 16 MiB"):
            tried(trials, GrammarSpec("json", json.dumps({"properties": fields})))
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
def test_invalid_grammar_has_the_compilers_reason(trials: GrammarSandbox, form: GrammarSpec):
    with pytest.raises(ValueError, match="structured_outputs: "):
        tried(trials, form)


@pytest.mark.parametrize(
    "form",
    [
        GrammarSpec("json", '{"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}'),
        GrammarSpec("grammar", "start: X\nX: /b/ & /c/"),
    ],
    ids=str,
)
def test_llguidance_compiles_up_to_the_first_token(trials: GrammarSandbox, form: GrammarSpec):
    """The engine would build its automata for minutes, or end the answer at once."""
    with pytest.raises(ValueError, match=r"^structured_outputs: "):
        tried(trials, form)
    assert tried(trials, GrammarSpec("grammar", "start: <[3]> /a|a{1,2}/")).kind == "grammar"


def ambiguous(names: int, rule: str, define: str) -> str:
    """A grammar that reads every text in many ways."""
    parts = [f"r{i}" for i in range(names)]
    return "\n".join([
        f"{rule} {define} e",
        f"e {define} /[ab]/ | {' | '.join(parts)}".replace("/", "" if "=" in define else "/"),
        *(f"{part} {define} e e" for part in parts),
    ])  # fmt: skip


@pytest.mark.parametrize(
    "grammar",
    [ambiguous(40, "start", ":"), ambiguous(10, "root", "::=").replace("[ab]", "[a-z ]{1,9}")],
    ids=["lark", "ebnf"],
)
def test_grammar_that_takes_long_per_token_is_refused(trials: GrammarSandbox, grammar: str):
    """The engine would stop for each of its tokens."""
    with pytest.raises(ValueError, match="it is too ambiguous"):
        tried(trials, GrammarSpec("grammar", grammar))


def text_of(*patterns: str) -> GrammarSpec:
    texts = [{"type": "string", "pattern": f"^{each}$"} for each in patterns]
    schema = {"type": "object", "properties": {"a": {"allOf": texts}}, "required": ["a"]}
    return GrammarSpec("json", json.dumps({**schema, "additionalProperties": False}))


GIVEN_UP = [
    ("([a-z]{0,90}[a-z ]{0,90}){0,15}",),
    ("[^,]{1,66}.*([a-z ]{1,32}|[^,]{3,63}a.{3,22})",),
    ("(.{0,19},){0,18}", "(.{0,17}b){0,20}"),
]


@pytest.mark.parametrize("patterns", GIVEN_UP, ids=str)
def test_schema_that_llguidance_gives_up_is_refused(
    trials: GrammarSandbox, patterns: tuple[str, ...]
):
    """It would fail within the answer."""
    with pytest.raises(ValueError, match="it is too ambiguous"):
        tried(trials, text_of(*patterns))


PATTERNS = [
    r"([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.){1,8}[a-z]{2,}",
    r"(?:arn:aws[a-zA-Z-]*:iam::\d{12}:role\/)?[a-zA-Z_0-9+=,.@\-_/]{1,512}",
    r"(?:[\w-]{1,64}/){0,10}[\w-]{1,64}",
    r"\S(.{0,498}\S)?",
    ".{1,200}: .{1,300}",
    "([a-z]{1,20} ?){1,30}",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_usual_patterns_are_compiled(trials: GrammarSandbox, pattern: str):
    """They are ambiguous, but at few places at a time."""
    assert tried(trials, text_of(pattern)).kind == "grammar"


def test_trial_passes_a_long_beginning_without_alternatives(trials: GrammarSandbox):
    grammar = ambiguous(10, "root", "::=").replace("[ab]", "[a-z ]{1,9}")
    begun = grammar.replace("root ::= e", f'root ::= "{"<beginning>" * 40}" e')
    with pytest.raises(ValueError, match="it is too ambiguous"):
        tried(trials, GrammarSpec("grammar", begun))


def test_slow_grammar_within_a_structural_tag_is_refused(trials: GrammarSandbox):
    """As that of a custom tool, which begins after any text."""
    grammar = ambiguous(10, "root", "::=").replace("[ab]", "[a-z ]{1,9}")
    for text, refused in ((grammar, True), ('root ::= "a" | "b" root', False)):
        content = {"type": "grammar", "grammar": text}
        tag = {"type": "tag", "begin": "<t>", "content": content, "end": "</t>"}
        calls = {"type": "triggered_tags", "triggers": ["<t>"], "tags": [tag]}
        form = GrammarSpec(
            "structural_tag", json.dumps({"type": "structural_tag", "format": calls})
        )
        if refused:
            with pytest.raises(ValueError, match="it is too ambiguous"):
                tried(trials, form)
        else:
            assert tried(trials, form).kind == "structural_tag"


@pytest.mark.parametrize(
    "grammar",
    [
        'start: e\ne: e "+" t | t\nt: t "*" f | f\nf: /[0-9]+/ | "(" e ")"',
        'root ::= e\ne ::= e "+" t | t\nt ::= t "*" f | f\nf ::= [0-9]+ | "(" e ")"',
        'root ::= "a" | "b" | root root',
        "start: TEXT\nTEXT: /(.{0,10},){1,9}/",
    ],
)
def test_grammar_of_usual_ambiguity_is_compiled(trials: GrammarSandbox, grammar: str):
    assert tried(trials, GrammarSpec("grammar", grammar)).kind == "grammar"


def test_dead_sandbox_process_is_replaced():
    """The grammar it was compiling fails with a server error, and a new process starts."""
    trials = GrammarSandbox()
    try:
        assert tried(trials, VALID) == VALID
        waiting = trials.submit(HOSTILE, vocabulary)
        assert trials._process is not None
        trials._process.process.kill()
        with pytest.raises(EngineError, match="process died"):
            waiting.result(timeout=120)
        assert tried(trials, VALID) == VALID
    finally:
        trials.close()


def malformed(connection: socket.socket) -> None:
    """Stands in for the sandbox process: answers each grammar with another malformed reply."""
    with connection.makefile("rwb", buffering=0) as lines:
        lines.readline()
        number = json.loads(lines.readline())["id"]
        lines.write(MALFORMED[int(os.environ["MALFORMED"])].replace(b"ID", b"%d" % number) + b"\n")
        lines.readline()


MALFORMED = (
    b"Segmentation fault",
    b"\xff",
    b"7",
    b"[" * 100_000,
    b'{"kind": "regex", "text": "a"}',
    b'{"id": 99, "kind": "regex", "text": "a"}',
    b'{"id": [], "kind": "regex", "text": "a"}',
    b'{"id": ID, "kind": "regex"}',
)


@pytest.mark.parametrize("number", range(len(MALFORMED)))
def test_sandbox_process_with_a_malformed_reply_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
):
    """What waits for it fails with a server error at once, and the process ends."""
    monkeypatch.setenv("MALFORMED", str(number))
    monkeypatch.setattr(sandbox, "_FUNCTION", f"{__name__}:malformed")
    monkeypatch.setattr(children, "launch", helper_process.launch)
    trials = GrammarSandbox()
    try:
        waiting = [trials.submit(VALID, dict) for _ in range(2)]
        assert trials._process is not None
        broken = trials._process.process
        for each in waiting:
            with pytest.raises(EngineError) as failed:
                each.result(timeout=60)
            assert failed.value.code == error_codes.UNAVAILABLE
        broken.wait()
        assert "the grammar sandbox sent a malformed reply" in caplog.text
        trials.start()
        assert trials._process.process.pid != broken.pid
    finally:
        trials.close()


def test_vocabulary_that_cannot_be_read_is_the_servers_error():
    """A ValueError would be the request's, with status 400."""

    def unreadable() -> dict[str, Any]:
        raise ValueError("unknown tokenizer")

    unused = GrammarSandbox()
    try:
        with pytest.raises(EngineError, match="vocabulary cannot be read: unknown tokenizer"):
            unused.submit(VALID, unreadable)
        assert unused.submit(VALID, vocabulary).result(timeout=120) == VALID
    finally:
        unused.close()


class Flaky(GrammarPreparer):
    """Fails to read the model's tokens the first time."""

    reads = 0

    def _vocabulary(self) -> dict[str, Any]:
        self.reads += 1
        if self.reads == 1:
            raise RuntimeError("no memory for the tokens")
        return vocabulary()


@pytest.fixture
def flaky() -> Iterator[Flaky]:
    config = SimpleNamespace(backend="auto", disable_any_whitespace=False)
    made = Flaky(SimpleNamespace(vllm_config=SimpleNamespace(structured_outputs_config=config)))
    yield made
    made.close()


def constrained(**constraint: Any) -> Any:
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams

    return SamplingParams(structured_outputs=StructuredOutputsParams(**constraint))


async def test_internal_failure_is_not_cached(flaky: Flaky):
    """The error reaches the caller, and the same grammar succeeds the next time."""
    with pytest.raises(RuntimeError, match="no memory"):
        await flaky.prepare(constrained(regex=VALID.text))
    await flaky.prepare(constrained(regex=VALID.text))

    assert flaky.reads == 2


@pytest.mark.parametrize(
    "constraint",
    [{"json": '{"type": "integer"}'}, {"json_object": True}, {"regex": VALID.text}],
    ids=str,
)
async def test_known_constraint_needs_no_thread(flaky: Flaky, constraint: dict[str, Any]):
    """An agent sends the same schema with every request."""
    flaky.reads = 1  # the next read succeeds
    given = constrained(**constraint)
    first = await flaky.prepare(given)
    flaky._thread.shutdown()  # a use would fail
    second = await flaky.prepare(given)

    assert first.structured_outputs == second.structured_outputs
    assert first.structured_outputs is not second.structured_outputs  # vLLM writes to it
    assert given == constrained(**constraint)


def test_close_ends_the_process():
    """The running compilation ends, too."""
    trials = GrammarSandbox()
    assert tried(trials, VALID) == VALID
    trials.submit(HOSTILE, vocabulary)
    assert trials._process is not None
    process = psutil.Process(trials._process.process.pid)
    while not (forks := process.children()):
        time.sleep(0.001)

    trials.close()

    _, alive = psutil.wait_procs([process, *forks], timeout=60)
    assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "a"', 'root ::= "a"', '# root ::= "a"\nstart: "a"', "", 'a: "::="', "a\n\nb ::= c",
        '// ::=\nstart: /#::=/', "start: x\r\n::= y",
    ],
)  # fmt: skip
def test_lark_and_ebnf_are_distinguished_as_in_vllm(grammar: str):
    """The engine's process uses vLLM's own function."""
    from vllm.v1.structured_output.utils import grammar_is_likely_lark

    assert is_lark(grammar) == (grammar_is_likely_lark(grammar) or not grammar)
