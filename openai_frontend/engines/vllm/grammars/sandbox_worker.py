"""The grammar sandbox process; `run` is its function.

Each grammar is prepared and compiled in a fork of this process, which never compiles anything
itself and has one thread, so it may fork. A fork has a CPU and a memory limit, and may crash: the
grammar is then refused and never reaches the engine's process, which serves all requests.

Its socket has lines of JSON: first `{"vocabulary", "special_tokens", "cpu_s", "wall_s",
"memory_mib"}`, then `{"id", "kind", "text"}`. It replies to each with `{"id", "kind", "text"}`, or
with `{"id", "error"}`, and `"over_limit": true` if a limit was exceeded, or `{"id", "starved":
true}` if the machine was too busy to compile it in time.
"""

import json
import os
import resource
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import numpy as np

from openai_frontend.engines.vllm.grammars.preprocess import (
    GrammarSpec,
    embedded_grammars,
    for_llguidance,
    prepare,
)
from openai_frontend.engines.vllm.grammars.text_grammars import is_lark
from openai_frontend.engines.vllm.grammars.xgrammar_errors import reason_of
from openai_frontend.runtime.process_settings import end_with, lower_priority

STACK_MIB = 4  # half of the engine's thread stacks
MAX_FORKS = 4  # so that a slow grammar does not block others
NICENESS = 10
_ENDED = float("inf")  # deadline of a fork that was killed at its deadline
# Tokens with alternatives and all tokens of each trial answer, and the CPU time of all answers.
# With a large vocabulary, ambiguous grammars take seconds per token, usual ones 10 to 30 us. The
# engine allows a grammar more (grammar_masks.py).
_TRIAL_TOKENS, _TRIAL_LENGTH, _TRIAL_S = 32, 1024, 2.5
# Characters of each answer's tokens: any, letters that many expressions read in several ways, or
# separators
_TRIAL_ALPHABETS = (None, b"ab ", b",./-")
_END = -1
_AMBIGUOUS = (
    "it is too ambiguous: the engine would follow too many readings of an answer. Use lower counts,"
    " or separators that what is repeated cannot contain"
)
_ENGINES_ERRORS = (RuntimeError, ValueError)  # raised by xgrammar and llguidance


@dataclass(frozen=True, slots=True)
class _Limits:
    vocabulary: Any  # xgrammar's TokenizerInfo
    special_tokens: Mapping[str, int] | None
    tokenizer: Any  # llguidance's; None if it does not run
    cpu_s: int  # CPU time
    wall_s: int
    memory_mib: int  # in addition to this process's memory


@dataclass(slots=True)
class _Fork:
    number: int
    pid: int
    deadline: float
    output: bytearray = field(default_factory=bytearray)


class SandboxWorker:
    """Runs forks, several at a time."""

    def __init__(self, limits: _Limits, read: bytes, connection: socket.socket) -> None:
        """`read`: the requests' bytes that have already been read."""
        self._limits = limits
        self._connection = connection
        self._lines = read
        self._waiting: deque[dict[str, Any]] = deque()
        self._running: dict[int, _Fork] = {}  # by the file descriptor that they write to
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Run until the other side closes the connection. The forks die with this process."""
        self._selector.register(self._connection, selectors.EVENT_READ)
        self._split()
        while self._step():
            pass

    def _step(self) -> bool:
        while self._waiting and len(self._running) < MAX_FORKS:
            self._begin(self._waiting.popleft())
        for key, _ in self._selector.select(self._until_deadline()):
            if key.fileobj is not self._connection:
                self._read_output(key.fd)
            elif not self._read_requests():
                return False
        self._kill_late_forks()
        return True

    def _read_requests(self) -> bool:
        data = self._connection.recv(1 << 16)
        self._lines += data
        self._split()
        return bool(data)

    def _split(self) -> None:
        *lines, self._lines = self._lines.split(b"\n")
        self._waiting += map(json.loads, lines)

    def _until_deadline(self) -> float | None:
        """Seconds to the next deadline; None if there is none. Killed forks report through their
        files.
        """
        first = min((fork.deadline for fork in self._running.values()), default=_ENDED)
        return None if first == _ENDED else max(0.0, first - time.monotonic())

    def _kill_late_forks(self) -> None:
        for fork in self._running.values():
            if time.monotonic() >= fork.deadline:
                os.kill(fork.pid, signal.SIGKILL)  # its file closes, which `_read_output` handles
                fork.deadline = _ENDED

    def _begin(self, request: dict[str, Any]) -> None:
        read_fd, write_fd = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _try(GrammarSpec(request["kind"], request["text"]), self._limits, write_fd, parent)
        os.close(write_fd)
        deadline = time.monotonic() + self._limits.wall_s
        self._running[read_fd] = _Fork(request["id"], pid, deadline)
        self._selector.register(read_fd, selectors.EVENT_READ)

    def _read_output(self, read_fd: int) -> None:
        if data := os.read(read_fd, 1 << 16):
            self._running[read_fd].output += data
            return
        self._selector.unregister(read_fd)
        os.close(read_fd)
        fork = self._running.pop(read_fd)
        _, status, usage = os.wait4(fork.pid, 0)
        cpu_s = usage.ru_utime + usage.ru_stime
        outcome = self._outcome(os.waitstatus_to_exitcode(status), cpu_s, bytes(fork.output))
        self._connection.sendall(_line({**outcome, "id": fork.number}))

    def _outcome(self, exit_code: int, cpu_s: float, output: bytes) -> dict[str, Any]:
        if exit_code == 0:
            reply: dict[str, Any] = json.loads(output)
            return reply
        # Killed at its deadline, or by a machine without memory
        if exit_code == -signal.SIGKILL and cpu_s < self._limits.cpu_s:
            return {"starved": True}
        if exit_code in (-signal.SIGXCPU, -signal.SIGKILL):
            reason = f"compiling it takes more than {self._limits.cpu_s} s"
        else:
            reason = f"compiling it needs more than {self._limits.memory_mib} MiB"
        return {"error": f"structured_outputs: {reason}", "over_limit": True}


class _GuidanceVocabulary:
    """The vocabulary as llguidance reads it. Nothing encodes text."""

    bos_token_id = None

    def __init__(self, vocabulary: Any, special_tokens: Mapping[str, int]) -> None:
        self.tokens = vocabulary.decoded_vocab
        self.eos_token_id = next(iter(vocabulary.stop_token_ids), 0)
        self.special_token_ids = list(special_tokens.values())

    def __call__(self, text: bytes) -> list[int]:
        raise NotImplementedError


def _limits(message: dict[str, Any]) -> _Limits:
    import llguidance
    import xgrammar

    vocabulary = xgrammar.TokenizerInfo.deserialize_json(message["vocabulary"])
    special, tokenizer = message["special_tokens"], None
    if special is not None:
        tokens = llguidance.TokenizerWrapper(_GuidanceVocabulary(vocabulary, special))
        tokenizer = llguidance.LLTokenizer(tokens)
    limits = (message[name] for name in ("cpu_s", "wall_s", "memory_mib"))
    return _Limits(vocabulary, special, tokenizer, *limits)


def _try(form: GrammarSpec, limits: _Limits, write_fd: int, parent: int) -> NoReturn:
    """Runs in the fork."""
    exit_code = 1
    try:
        end_with(parent)
        _limit(limits)
        with open(write_fd, "wb") as output:
            output.write(_line(_tried(form, limits)))
        exit_code = 0
    finally:
        os._exit(exit_code)  # no cleanup of the parent's resources


def _limit(limits: _Limits) -> None:
    lower_priority(NICENESS)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)  # a crash must not write to the server's log
    pages = int(open("/proc/self/statm").read().split()[0])  # noqa: SIM115  the fork ends soon
    memory = pages * resource.getpagesize() + limits.memory_mib * 2**20
    for limit, value in (
        (resource.RLIMIT_CPU, limits.cpu_s * _threads()),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_STACK, STACK_MIB * 2**20),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, resource.getrlimit(limit)[1]))


def _threads() -> int:
    """Half of the machine's processors, at most as many as the engine uses."""
    return max(1, min(8, len(os.sched_getaffinity(0)) // 2))


def _tried(form: GrammarSpec, limits: _Limits) -> dict[str, Any]:
    try:
        ready = prepare(form, limits.special_tokens)
        _compile(ready, limits)
    except ValueError as error:
        return {"error": str(error)}
    return {"kind": ready.kind, "text": ready.text}


def _compile(form: GrammarSpec, limits: _Limits) -> None:
    """Compile as the engine does. Grammars that may be ambiguous also write a trial answer."""
    import xgrammar

    vocabulary = limits.vocabulary
    compiler = xgrammar.GrammarCompiler(vocabulary, max_threads=_threads(), cache_enabled=False)
    try:
        grammar = _compiled(form, compiler)
    except _ENGINES_ERRORS as error:
        reason = reason_of(error) or "it does not compile"
        if not _falls_to_llguidance(form):
            raise ValueError(f"structured_outputs: {reason}") from error
        grammar = None
    if grammar is None:
        _try_llguidance(form, limits)
        return
    mask = xgrammar.allocate_token_bitmask(1, vocabulary.vocab_size)
    narrowed = xgrammar.GrammarMatcher(grammar).fill_next_token_bitmask(mask)
    if narrowed and not mask.any():  # the engine would fail at the first token
        raise ValueError("structured_outputs: no text matches it")
    if form.kind == "grammar":  # a client's: the others are not ambiguous
        _write_trials(partial(_XgrammarTrial, grammar, mask), vocabulary)
    for text in embedded_grammars(form):
        part = compiler.compile_grammar(text)
        _write_trials(partial(_XgrammarTrial, part, mask), vocabulary)


def _compiled(form: GrammarSpec, compiler: Any) -> Any:
    """None if llguidance must compile it."""
    if form.kind == "regex":
        return compiler.compile_regex(form.text)
    if form.kind == "structural_tag":
        return compiler.compile_structural_tag(form.text)
    if form.kind == "json" or for_llguidance(form):
        return None
    if is_lark(form.text):
        return compiler.compile_lark(form.text)
    return compiler.compile_grammar(form.text)


def _falls_to_llguidance(form: GrammarSpec) -> bool:
    return form.kind == "grammar" and is_lark(form.text)


def _try_llguidance(form: GrammarSpec, limits: _Limits) -> None:
    """Leave refusals by llguidance to the engine's client, which has its own messages."""
    from llguidance import LLMatcher

    make: dict[str, Any] = {
        "json": LLMatcher.grammar_from_json_schema,
        "grammar": LLMatcher.grammar_from_lark,
    }
    try:
        grammar = make[form.kind](form.text)
    except _ENGINES_ERRORS:
        return
    if LLMatcher.validate_grammar(grammar, None) or limits.tokenizer is None:
        return
    matcher = LLMatcher(limits.tokenizer, grammar, log_level=0)
    if matcher.get_error():
        return
    matcher.compute_bitmask()
    if matcher.get_error():
        is_large = "TooComplex" in matcher.stop_reason()
        reason = "it is too large" if is_large else "no text matches it"
        raise ValueError(f"structured_outputs: {reason}")
    _write_trials(matcher.deep_copy, limits.vocabulary)


class _XgrammarTrial:
    """xgrammar's matcher with the methods of llguidance's."""

    def __init__(self, grammar: Any, mask: Any) -> None:
        import xgrammar

        self._matcher, self._mask = xgrammar.GrammarMatcher(grammar), mask

    def compute_bitmask(self) -> bytes:
        if not self._matcher.fill_next_token_bitmask(self._mask):
            self._mask.fill_(-1)
        return bytes(self._mask.numpy())

    def consume_token(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def get_error(self) -> str:
        return ""


def _write_trials(matcher: Callable[[], Any], vocabulary: Any) -> None:
    """Write the beginnings of some answers. Raises ValueError if they take too long, or llguidance
    gives one up.
    """
    end_s = time.process_time() + _TRIAL_S
    texts = vocabulary.decoded_vocab
    first_bytes = np.array([text[0] if text else 0 for text in texts])
    first_bytes[vocabulary.stop_token_ids] = _END
    for seed, alphabet in enumerate(_TRIAL_ALPHABETS):
        preferred = first_bytes != _END
        if alphabet is not None:
            preferred = np.array([len(text) == 1 and text in alphabet for text in texts])
        _write_trial(matcher(), first_bytes, preferred, np.random.default_rng(seed), end_s)


def _write_trial(
    matcher: Any, first_bytes: Any, preferred: Any, chooser: Any, end_s: float
) -> None:
    """`first_bytes`: of each token's text, or `_END`."""
    left = _TRIAL_TOKENS
    for _ in range(_TRIAL_LENGTH):
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if matcher.get_error() or time.process_time() > end_s:
            raise ValueError(f"structured_outputs: {_AMBIGUOUS}")
        allowed = np.unpackbits(mask, count=first_bytes.size, bitorder="little").view(bool)
        tokens = np.flatnonzero(allowed & (first_bytes != _END))
        if not tokens.size:
            return
        left -= bool((first_bytes[tokens] != first_bytes[tokens[0]]).any())
        favourites = tokens[preferred[tokens]]
        token = chooser.choice(favourites if favourites.size else tokens)
        if not left or not (matcher.consume_token(int(token)) or matcher.get_error()):
            return


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def run(connection: socket.socket) -> None:
    """Serve until the other side closes the connection."""
    import llguidance  # noqa: F401  before the first fork
    import xgrammar  # noqa: F401

    read = b""
    while b"\n" not in read:
        if not (data := connection.recv(1 << 20)):
            return
        read += data
    first, _, rest = read.partition(b"\n")
    SandboxWorker(_limits(json.loads(first)), rest, connection).run()
