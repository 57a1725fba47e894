"""The process that tries grammars: `python -m openai_frontend.engines.vllm.grammar_sandbox_worker`.

Each is prepared and compiled in a fork of this process, which never compiles anything itself, has
one thread and so may fork. A fork has a limit of time and of memory, and may crash: what it cannot
do is refused, and the engine's process, which serves everybody, never sees it.

Reads lines of JSON: `{"vocabulary", "cpu_s", "memory_mib"}` first, then `{"id", "kind", "text"}`.
Writes one for each of these: `{"id", "kind", "text"}`, or `{"id", "error"}` with
`"over_limit": true` where a limit was met.
"""

import contextlib
import json
import os
import resource
import selectors
import signal
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NoReturn

from openai_frontend.engines.vllm.grammar_preprocess import (
    GrammarSpec,
    is_lark,
    prepared,
    reason_of,
)
from openai_frontend.engines.vllm.patterns import repeat_bound_exceeded

STACK_MIB = 4  # half of what the engine's threads have
AT_ONCE = 4  # so that one grammar does not wait for another
NICENESS = 10  # the engine goes first
_ENDED = float("inf")  # the deadline of a trial that was ended at its deadline
_ENGINES_ERRORS = (RuntimeError, ValueError)  # of xgrammar's and llguidance's


@dataclass(frozen=True, slots=True)
class _Terms:
    vocabulary: Any  # xgrammar's TokenizerInfo
    cpu_s: int  # of one processor
    memory_mib: int  # more than this process has


@dataclass(slots=True)
class _Trial:
    number: int
    pid: int
    deadline: float
    said: bytearray = field(default_factory=bytearray)


class SandboxWorker:
    """Runs trials, some at once."""

    def __init__(self, terms: _Terms, read: bytes, replies: int) -> None:
        """`read`: what has been read of the requests."""
        self._terms = terms
        self._replies = replies
        self._lines = read
        self._waiting: deque[dict[str, Any]] = deque()
        self._running: dict[int, _Trial] = {}  # by the file that they write to
        self._selector = selectors.DefaultSelector()

    def run(self, requests: int) -> None:
        """Until the other side closes the file."""
        self._selector.register(requests, selectors.EVENT_READ)
        self._split()
        try:
            while self._step(requests):
                pass
        finally:
            for trial in self._running.values():
                os.kill(trial.pid, signal.SIGKILL)

    def _step(self, requests: int) -> bool:
        while self._waiting and len(self._running) < AT_ONCE:
            self._begin(self._waiting.popleft())
        for key, _ in self._selector.select(self._until_deadline()):
            if key.fd != requests:
                self._hear(key.fd)
            elif not self._take(requests):
                return False
        self._end_late_ones()
        return True

    def _take(self, requests: int) -> bool:
        data = os.read(requests, 1 << 16)
        self._lines += data
        self._split()
        return bool(data)

    def _split(self) -> None:
        *lines, self._lines = self._lines.split(b"\n")
        self._waiting += map(json.loads, lines)

    def _until_deadline(self) -> float | None:
        """Seconds; None where none is due: those that were ended are heard of."""
        first = min((trial.deadline for trial in self._running.values()), default=_ENDED)
        return None if first == _ENDED else max(0.0, first - time.monotonic())

    def _end_late_ones(self) -> None:
        for trial in self._running.values():
            if time.monotonic() >= trial.deadline:
                os.kill(trial.pid, signal.SIGKILL)  # its file ends, and is heard
                trial.deadline = _ENDED

    def _begin(self, request: dict[str, Any]) -> None:
        hears, says = os.pipe()
        pid = os.fork()
        if pid == 0:
            _try(GrammarSpec(request["kind"], request["text"]), self._terms, says)
        os.close(says)
        deadline = time.monotonic() + 2 * self._terms.cpu_s
        self._running[hears] = _Trial(request["id"], pid, deadline)
        self._selector.register(hears, selectors.EVENT_READ)

    def _hear(self, hears: int) -> None:
        if data := os.read(hears, 1 << 16):
            self._running[hears].said += data
            return
        self._selector.unregister(hears)
        os.close(hears)
        trial = self._running.pop(hears)
        _, status = os.waitpid(trial.pid, 0)
        outcome = self._outcome(os.waitstatus_to_exitcode(status), trial)
        _write(self._replies, {"id": trial.number, **outcome})

    def _outcome(self, exit_code: int, trial: _Trial) -> dict[str, Any]:
        if exit_code == 0:
            said: dict[str, Any] = json.loads(trial.said)
            return said
        if exit_code == -signal.SIGXCPU or trial.deadline == _ENDED:
            reason = f"it takes more than {self._terms.cpu_s} s to compile"
        else:
            reason = f"it cannot be compiled within {self._terms.memory_mib} MiB"
        return {"error": f"structured_outputs: {reason}", "over_limit": True}


def _terms(message: dict[str, Any]) -> _Terms:
    import xgrammar

    vocabulary = xgrammar.TokenizerInfo.deserialize_json(message["vocabulary"])
    return _Terms(vocabulary, message["cpu_s"], message["memory_mib"])


def _try(form: GrammarSpec, terms: _Terms, says: int) -> NoReturn:
    """In the fork."""
    exit_code = 1
    try:
        _limit(terms)
        _write(says, _tried(form, terms.vocabulary))
        exit_code = 0
    finally:
        os._exit(exit_code)  # nothing of the parent's is to be tidied up here


def _limit(terms: _Terms) -> None:
    os.nice(NICENESS)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)  # a crash says nothing in the server's log
    pages = int(open("/proc/self/statm").read().split()[0])  # noqa: SIM115  the fork ends soon
    memory = pages * resource.getpagesize() + terms.memory_mib * 2**20
    for limit, value in (
        (resource.RLIMIT_CPU, terms.cpu_s * _threads()),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_STACK, STACK_MIB * 2**20),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, resource.getrlimit(limit)[1]))


def _threads() -> int:
    """Half of the machine's processors, and no more than the engine takes."""
    return max(1, min(8, len(os.sched_getaffinity(0)) // 2))


def _tried(form: GrammarSpec, vocabulary: Any) -> dict[str, Any]:
    try:
        ready = prepared(form)
        _compile(ready, vocabulary)
    except ValueError as error:
        return {"error": str(error)}
    return {"kind": ready.kind, "text": ready.text}


def _compile(form: GrammarSpec, vocabulary: Any) -> None:
    """As the engine will, up to the first token."""
    import xgrammar

    compiler = xgrammar.GrammarCompiler(vocabulary, max_threads=_threads(), cache_enabled=False)
    try:
        grammar = _compiled(form, compiler)
    except _ENGINES_ERRORS as error:
        reason = reason_of(error) or "no grammar can be made of it"
        if not _falls_to_llguidance(form):
            raise ValueError(f"structured_outputs: {reason}") from error
        grammar = None
    if grammar is None:
        _try_llguidance(form)
        return
    mask = xgrammar.allocate_token_bitmask(1, vocabulary.vocab_size)
    narrowed = xgrammar.GrammarMatcher(grammar).fill_next_token_bitmask(mask)
    if narrowed and not mask.any():  # the engine would fail at the first token
        raise ValueError("structured_outputs: no text matches it")


def _compiled(form: GrammarSpec, compiler: Any) -> Any:
    """None where it is llguidance's to hold."""
    if form.kind == "regex":
        return None if repeat_bound_exceeded(form.text) else compiler.compile_regex(form.text)
    if form.kind == "structural_tag":
        return compiler.compile_structural_tag(form.text)
    if form.kind == "json":
        return None
    if is_lark(form.text):
        return compiler.compile_lark(form.text)
    return compiler.compile_grammar(form.text)


def _falls_to_llguidance(form: GrammarSpec) -> bool:
    return form.kind == "regex" or (form.kind == "grammar" and is_lark(form.text))


def _try_llguidance(form: GrammarSpec) -> None:
    """Only that it comes to an end: what llguidance refuses, the engine's client refuses in its
    own words.
    """
    from llguidance import LLMatcher

    make: dict[str, Any] = {
        "json": LLMatcher.grammar_from_json_schema,
        "regex": LLMatcher.grammar_from_regex,
        "grammar": LLMatcher.grammar_from_lark,
    }
    with contextlib.suppress(*_ENGINES_ERRORS):
        grammar = make[form.kind](form.text)
        LLMatcher.validate_grammar(grammar, None)


def _write(to: int, message: dict[str, Any]) -> None:
    data = memoryview(json.dumps(message).encode() + b"\n")
    while data:
        data = data[os.write(to, data) :]


def main() -> None:
    """Read from the standard input until it ends; nothing but replies goes out."""
    replies = os.dup(1)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import llguidance  # noqa: F401  before the first fork
    import xgrammar  # noqa: F401

    read = b""
    while b"\n" not in read:
        if not (data := os.read(0, 1 << 20)):
            return
        read += data
    first, _, rest = read.partition(b"\n")
    SandboxWorker(_terms(json.loads(first)), rest, replies).run(0)


if __name__ == "__main__":
    main()
