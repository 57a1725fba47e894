"""A gateway as an operator would configure it, and a client that sends it raw bytes.

After each test that uses a `Guarded`, the gateway must answer as before, its memory must not have
grown by more than an allocator keeps, and its log must show no fault.
"""

import json
import re
import socket
import time
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests import mock_models
from tests.api.routers.mock_gateway import RawResponse, exchange, request
from tests.fast.auth import key_files
from tests.fast.prompting import tiny_tokenizer
from tests.gateway_process import GatewayProcess
from tests.resilience.faults.invariants import MIB, TRACES
from tests.security import engines

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
KEY = "sk-canary-key-5d1f0c"  # every scope; must not appear in a log or an answer
TENANTS = "sk-tenant-a", "sk-tenant-b"  # each with its own prefix cache
MAX_BODY_BYTES = 1024 * 1024
GROWTH_BYTES = 48 * MIB

# An answer may contain these only if the caller sent them: memory addresses, paths, tracebacks,
# reprs, and names of the libraries below.
INTERNALS = re.compile(
    r"0x[0-9a-f]{6,}|Traceback|File \"|\.py\b|site-packages|<[\w.]+ object|<class |\bself\."
    r"|(?<![\w.])/(?:usr|home|root|tmp|opt|work|var|proc|lib|etc)/"
    r"|pydantic|orjson|jinja|httptools|uvicorn|starlette|fastapi|tokenizers|transformers|xgrammar"
    r"|tritonserver|TRITONSERVER|RuntimeError|ValueError|TypeError|KeyError|RecursionError"
    r"|MemoryError|UnicodeDecodeError|canary",
    re.IGNORECASE,
)

ANSWER = "canary answer 4bd2"  # the answer of `teller`; must not appear in a log
ODD_ANSWERS = {
    "replacement": ["a", "\ufffd"],
    "split-pair": ["\ud83d", "\ude42"],
    "lone-surrogate": ["a\ud800"],
    "control-characters": ["\x00\x1b[31m\r\n\n", "data: [DONE]\n\n"],
    "line-separators": ["\u2028\u2029\x85"],
}
TOKENS = ["Hello", " there", ",", " how", " are", " you", "?"]
MESSAGES = [{"role": "user", "content": "hi"}]
REQUIRED: dict[str, dict[str, Any]] = {
    CHAT: {"model": "mock", "messages": MESSAGES, "max_tokens": 7},
    COMPLETIONS: {"model": "mock", "prompt": "hi", "max_tokens": 7},
    EMBEDDINGS: {"model": "mock", "input": "hi"},
    "/v1/decisions": {
        "model": "mock",
        "input": "hi",
        "questions": [{"type": "predicate", "instructions": "a"}],
    },
    "/v1/pooling": {"model": "mock", "input": "hi"},
    "/v1/rerank": {"model": "mock", "query": "hi", "documents": ["a"]},
    "/v1/score": {"model": "mock", "text_1": "hi", "text_2": "a"},
    "/tokenize": {"model": "mock", "prompt": "hi"},
    "/detokenize": {"model": "mock", "tokens": [1]},
    "/v2/models/mock/generate": {"text_input": "hi"},
}


@dataclass
class Guarded:
    """The gateway's process and methods that send requests to it."""

    process: GatewayProcess
    events: Path  # what Mirror recorded

    def raw(self, sent: bytes) -> RawResponse:
        """Send these bytes unchanged."""
        return exchange(self.process.port, sent)

    def ask(
        self, line: str, body: bytes = b"", *headers: str, key: str | None = KEY
    ) -> RawResponse:
        """Send a complete request with the key and a JSON content type."""
        own = [f"authorization: Bearer {key}"] if key else []
        kind = ["content-type: application/json"] if body else []
        return self.raw(request(line, *own, *kind, *headers, body=body))

    def flood(self, pieces: Iterable[bytes], *, ends: bool = False) -> bytes:
        """Write until the gateway closes the connection and return what it sent. `ends` half-closes
        the connection after the last piece.
        """
        with socket.create_connection(("127.0.0.1", self.process.port), timeout=120) as connection:
            with suppress(OSError):  # the gateway closed the connection while we were writing
                for piece in pieces:
                    connection.sendall(piece)
                if ends:
                    connection.shutdown(socket.SHUT_WR)
            received = b""
            with suppress(ConnectionError):
                while more := connection.recv(65536):
                    received += more
        return received

    def grown_by(self, count: int, sent: bytes) -> int:
        """Return how many bytes the process grew by while `count` connections have sent these bytes
        and it still answers other requests.
        """
        before = self.memory_bytes()
        with ExitStack() as connections:
            for _ in range(count):
                address = ("127.0.0.1", self.process.port)
                connections.enter_context(socket.create_connection(address, 120)).sendall(sent)
            assert self.answers()
            return self.memory_bytes() - before

    def post(self, path: str, fields: dict[str, Any] | bytes, *headers: str) -> RawResponse:
        """Post these fields added to those that the path requires, or this body unchanged."""
        if isinstance(fields, bytes):
            body = fields
        else:
            body = json.dumps({**REQUIRED.get(path, {}), **fields}).encode()
        return self.ask(f"POST {path}", body, *headers)

    def answers(self, **fields: Any) -> bool:
        """Whether a plain chat request gets a 200."""
        return self.post(CHAT, fields).status == 200

    def log(self) -> str:
        """Return the whole log so far. A separate thread writes it, so wait for a marker."""
        mark = f"mark-{uuid.uuid4()}"
        self.ask("GET /health/live", b"", f"x-request-id: {mark}")
        deadline = time.monotonic() + 120
        while mark not in (said := self.process.output()):
            assert time.monotonic() < deadline, "the log is not written"
            time.sleep(0.002)
        return said

    def memory_bytes(self) -> int:
        return psutil.Process(self.process.pid).memory_info().rss

    def recorded(self) -> list[tuple[str, list[str]]]:
        """Return the event and arguments of everything that Mirror's hook recorded."""
        return [tuple(json.loads(line)) for line in self.events.read_text().splitlines()]


def message_of(response: RawResponse) -> str:
    """Return the message of an error envelope after checking its form: OpenAI's, KServe's or
    Anthropic's.
    """
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    assert len(response.body) == int(response.headers["content-length"])
    envelope = json.loads(response.body)
    if "type" in envelope:
        assert set(envelope) == {"type", "error", "request_id"}
        assert set(envelope["error"]) == {"type", "message"}
        return str(envelope["error"]["message"])
    assert list(envelope) == ["error"]
    error = envelope["error"]
    if isinstance(error, str):
        return error
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert isinstance(error["code"], str | None)
    return str(error["message"])


def check_refused(response: RawResponse, *statuses: int, echoed: str = "") -> None:
    """Check that the status is expected and that the envelope exposes no internals; `echoed` is
    text that the caller sent.
    """
    assert response.status in (statuses or (400,)), (response.status, response.body[:500])
    message = message_of(response)
    said = json.dumps(json.loads(response.body)["error"], ensure_ascii=False)
    said = said.replace(json.dumps(echoed, ensure_ascii=False)[1:-1] or "\0", "")
    assert INTERNALS.search(said) is None, said
    assert len(message) < 2000 + len(echoed)


@contextmanager
def guarded_gateway(folder: Path, *more: str) -> Iterator[Guarded]:
    """Start a gateway with these models: `mock` answers at once, `slow` at 10 tokens per second,
    `mirror` with its request, `vision` with its images and audio files, `hears` with its audio;
    `broken` fails, `tools` has a template for tools, `teller` fails in a tool call, and each of
    ODD_ANSWERS gives that answer. `more` options come last.
    """
    repository, events = folder / "models", folder / engines.EVENTS
    events.touch()
    mock_models.write_with_tokenizer(repository, "mock", tokens=TOKENS, answer_tokens=7)
    slow = {"tokens": TOKENS, "tokens_per_second": 10.0}
    mock_models.write_with_tokenizer(repository, "slow", **slow)
    mock_models.write_with_media(repository, "vision")
    mock_models.write_with_tokenizer(
        repository, "hears", audio_window_s=30.0, describe_audio=True, answer_tokens=1
    )
    mock_models.write_with_turns(repository, "tools", turns=[{"text": "Hello"}])
    told = {"tokens": ['<tool_call>{"name": ', ANSWER], "fail_after_tokens": 8}
    mock_models.write_with_tokenizer(repository, "teller", **told)
    for name, tokens in ODD_ANSWERS.items():
        mock_models.write_with_tokenizer(repository, name, tokens=tokens, answer_tokens=4)
    for name, engine, arguments in (
        ("mirror", "Mirror", {"events": str(events)}),
        ("broken", "Broken", {}),
    ):
        version = mock_models.write(repository, name, config=engines.config(engine), **arguments)
        tiny_tokenizer.write(version / "tokenizer")
    keys = [
        key_files.key("canary", secret=KEY),
        *(
            key_files.key(f"tenant{number}", secret=secret, isolate_prefix_cache=True)
            for number, secret in enumerate(TENANTS)
        ),
        key_files.key("metrics-only", secret="sk-metrics", scopes=frozenset({"metrics"})),
    ]
    options = [
        f"--keys-file={key_files.write(folder / 'keys.yaml', *keys)}",
        f"--max-body-bytes={MAX_BODY_BYTES}",
        "--enable-model-management",
        "--tool-call-parser=teller=hermes",
        "--access-log",
        "--lora-poll-interval-s=3600",  # the gateway opens files only for requests
        "--log-level=debug",
        *more,
    ]
    with GatewayProcess(repository, folder / "log", *options) as process:
        process.wait_until_ready()
        yield Guarded(process, events)


@contextmanager
def unharmed(guarded: Guarded, may_log: Collection[str] = ()) -> Iterator[Guarded]:
    """The checks after each test; `may_log` lists the TRACES that the test itself causes."""
    memory, logged = guarded.memory_bytes(), len(guarded.log())
    yield guarded
    assert guarded.answers(), "the next plain request is not answered"
    grown = guarded.memory_bytes() - memory
    assert grown < GROWTH_BYTES, f"{grown / MIB:.0f} MiB more than before"
    said = guarded.log()[logged:]
    assert [trace for trace in TRACES if trace in said and trace not in may_log] == [], said[-4000:]
