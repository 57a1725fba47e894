"""Streams over real sockets: directly written text equals the text of a complete response."""

import http.client
import json
import re
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import mock_models
from tests.fast.prompting import tiny_tokenizer
from tests.gateway_process import GatewayProcess

TOKENS = [
    "Hel",
    "lo",
    ", ",
    '"wörld"\n',
    "\\",
    "\0\x1f",
    "\u2028",
    "😀",
    "",
    " ",
    "data: [DONE]\n\n",
]
THINKING = "{# <tool_call> <think> #}{% if tools %}{% endif %}" + tiny_tokenizer.CHATML
CALL = (
    "<tool",
    '_call>{"name": "f", "arg',
    'uments": {"a": "',
    *TOKENS[4:8],
    '"}}</tool_',
    "call>",
)
PARSED = [
    *("<think>", "hm", ", ", "so", " ", "it is\n", "</th", "ink>", "\n\n", "Hi", " <", "b", "> "),
    *(token.replace("\\", "\\\\") for token in CALL * 2),
]
LONG_TOKEN = "0123456789abcdef" * 4096  # 64 KiB
LONG_TOKENS = 300
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory) -> Iterator[GatewayProcess]:
    """Mock models: short answers, answers larger than any buffer, endless answers and failures."""
    folder = tmp_path_factory.mktemp("short_way")
    repository = folder / "models"
    long = {"tokens": [LONG_TOKEN], "answer_tokens": LONG_TOKENS}
    models: dict[str, dict[str, Any]] = {
        "talks": {"tokens": TOKENS, "answer_tokens": 40},
        "steady": {"tokens": TOKENS, "answer_tokens": 40, "tokens_per_second": 500},
        "endless": {"tokens": ["on "], "tokens_per_second": 100},
        "long": long,
        "fails": {"tokens": TOKENS, "fail_after_tokens": 25},
        "fails_long": {**long, "fail_after_tokens": LONG_TOKENS - 1},
    }
    for name, arguments in models.items():
        mock_models.write_with_tokenizer(repository, name, **arguments)
    for name, rate in (("thinks", 0), ("thinks_steadily", 500)):
        parsed = {"tokens": PARSED, "answer_tokens": len(PARSED), "tokens_per_second": rate}
        folder = mock_models.write_with_tokenizer(repository, name, **parsed)
        tiny_tokenizer.write(folder, chat_template=THINKING)
    # Holds a slow client's whole answer; tests/resilience/faults tests the limit
    buffer = f"--stream-buffer-bytes={2 * len(LONG_TOKEN) * LONG_TOKENS}"
    with GatewayProcess(repository, folder / "log", buffer) as process:
        process.wait_until_ready()
        yield process


def body(path: str, model: str, **fields: Any) -> dict[str, Any]:
    asks = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    return {"model": model, "max_tokens": 1000, **asks, **fields}


def whole(gateway: GatewayProcess, path: str, model: str, **fields: Any) -> dict[str, Any]:
    response = httpx.post(gateway.url + path, json=body(path, model, **fields), timeout=120)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def streamed(gateway: GatewayProcess, path: str, model: str, **fields: Any) -> list[Any]:
    """The parsed events of a stream; [DONE] stays text."""
    asked = body(path, model, stream=True, **fields)
    return events(httpx.post(gateway.url + path, json=asked, timeout=120).content)


def events(stream: bytes) -> list[Any]:
    *parts, end = stream.split(b"\n\n")
    assert end == b""
    payloads = [part.removeprefix(b"data: ") for part in parts]
    return [each.decode() if each == b"[DONE]" else json.loads(each) for each in payloads]


def text_of(choice: Mapping[str, Any]) -> str:
    text = choice["text"] if "text" in choice else choice["delta"].get("content")
    return text or ""


def texts(streamed: list[Any]) -> dict[int, str]:
    """The text of each choice, joined as a client does."""
    gathered: defaultdict[int, list[str]] = defaultdict(list)
    for event in streamed:
        for choice in event["choices"] if isinstance(event, dict) and "choices" in event else []:
            gathered[choice["index"]].append(text_of(choice))
    return {index: "".join(parts) for index, parts in gathered.items()}


def wholes(answer: Mapping[str, Any]) -> dict[int, str]:
    return {
        choice["index"]: choice["text"] if "text" in choice else choice["message"]["content"]
        for choice in answer["choices"]
    }


def ended(gateway: GatewayProcess, model: str) -> float:
    """The number of requests to the model that have ended in Triton, successfully or not."""
    families = text_string_to_metric_families(httpx.get(f"{gateway.url}/metrics").text)
    names = ("nv_inference_request_success", "nv_inference_request_failure")
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith(names) and sample.labels["model"] == model
    )


def until(true: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class SlowClient:
    """Sends a request; reads only in `read`."""

    def __init__(self, gateway: GatewayProcess, asked: Mapping[str, Any]) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.settimeout(120)
        self._socket.connect(("127.0.0.1", gateway.port))
        sent = json.dumps(asked).encode()
        head = f"POST {TEXT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        self._socket.sendall(f"{head}content-length: {len(sent)}\r\n\r\n".encode() + sent)

    def begun(self) -> None:
        """Wait until the response begins."""
        assert self._socket.recv(1, socket.MSG_PEEK) == b"H"

    def read(self) -> list[Any]:
        """Read the whole response, up to the end of its last chunk."""
        with http.client.HTTPResponse(self._socket) as response:
            response.begin()
            return events(response.read())

    def close(self) -> None:
        self._socket.close()


USAGE = {"stream_options": {"include_usage": True}}


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("model", ["talks", "steady"])
def test_stream_has_the_text_and_usage_of_a_complete_response(gateway, path, model):
    answer = whole(gateway, path, model)

    stream = streamed(gateway, path, model, **USAGE)

    assert "".join((TOKENS * 4)[:40]) == wholes(answer)[0]
    assert wholes(answer) == texts(stream)
    assert (answer["usage"], "[DONE]") == (stream[-2]["usage"], stream[-1])
    assert [
        choice["finish_reason"]
        for event in stream[:-1]
        for choice in event["choices"]
        if choice["finish_reason"]
    ] == ["stop"]


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
PARSED_OPTIONS: dict[str, dict[str, Any]] = {
    "tools": {"tools": [TOOL]},
    "no tools": {},
    "one call": {"tools": [TOOL], "parallel_tool_calls": False},
    "a custom tool": {"tools": [{"type": "custom", "custom": {"name": "f"}}]},
    "functions": {"functions": [TOOL["function"]]},
    "hidden reasoning": {"tools": [TOOL], "include_reasoning": False},
    "two choices": {"tools": [TOOL], "n": 2},
    "log probabilities": {"tools": [TOOL], "logprobs": True, "top_logprobs": 2},
    "token ids": {"tools": [TOOL], "return_token_ids": True},
    "an interval": {"tools": [TOOL], "stream_interval": 4},
    "cut off": {"tools": [TOOL], "max_tokens": 16},
}


def folded(stream: list[Any]) -> list[dict[str, Any]]:
    """The first choice's message as clients add it up, its log probabilities and its reason."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": {}}
    logprobs: list[Any] = []
    reasons = []
    for event in stream[:-1]:
        for choice in event["choices"]:
            if choice["index"] != 0:
                continue
            delta = choice["delta"]
            for name in ("content", "reasoning_content"):
                message[name] += delta.get(name) or ""
            for call in delta.get("tool_calls", ()):
                _add(message["tool_calls"].setdefault(call["index"], {}), call)
            if "function_call" in delta:
                _add(message.setdefault("function_call", {}), delta["function_call"])
            logprobs += (choice["logprobs"] or {}).get("content", ())
            reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    return [message, {"logprobs": logprobs, "reasons": reasons}]


def _add(joined: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for name, value in delta.items():
        if isinstance(value, dict):
            _add(joined.setdefault(name, {}), value)
        elif name != "index":
            joined[name] = joined.get(name, "") + value


@pytest.mark.parametrize("name", PARSED_OPTIONS)
@pytest.mark.parametrize("model", ["thinks", "thinks_steadily"])
def test_parsed_stream_has_the_message_of_a_complete_response(gateway, model, name):
    """Content, reasoning, calls, log probabilities, finish reason and usage, for any option."""
    options = PARSED_OPTIONS[name]
    answer = whole(gateway, CHAT, model, **options)
    choice = answer["choices"][0]

    stream = streamed(gateway, CHAT, model, **options, **USAGE)

    message, rest = folded(stream)
    expected = choice["message"]
    for field in ("content", "reasoning_content"):
        assert (expected.get(field) or "") == message[field]
    calls = [without_id(call) for call in expected.get("tool_calls", ())]
    assert calls == [without_id(call) for call in message["tool_calls"].values()]
    assert expected.get("function_call") == message.get("function_call")
    assert ((choice["logprobs"] or {}).get("content", [])) == rest["logprobs"]
    assert [choice["finish_reason"]] == rest["reasons"]
    # The mock's ids are not the tokenizer's, by which a complete response counts its reasoning.
    for usage in (answer["usage"], stream[-2]["usage"]):
        del usage["completion_tokens_details"]
    assert answer["usage"] == stream[-2]["usage"] or name == "one call"  # which ends the engine


def without_id(call: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in call.items() if name != "id"}


@pytest.mark.parametrize("model", ["talks", "steady"])
@pytest.mark.parametrize("top", [0, 3])
def test_streamed_log_probabilities_equal_those_of_a_complete_response(gateway, model, top):
    asked = {"logprobs": True, "top_logprobs": top}
    [choice] = whole(gateway, CHAT, model, **asked)["choices"]

    _, rest = folded(streamed(gateway, CHAT, model, **asked))

    assert len(rest["logprobs"]) == 40
    assert choice["logprobs"]["content"] == rest["logprobs"]


def test_most_parsed_tokens_are_written_directly(gateway):
    """Of calls, reasoning and log probabilities too."""
    for model, fields, most in (
        ("thinks_steadily", {"tools": [TOOL]}, 8),
        ("steady", {"logprobs": True, "top_logprobs": 1}, 20),
    ):
        before = relayed(gateway)
        streamed(gateway, CHAT, model, **fields)
        assert relayed(gateway) - before > most


def relayed(gateway: GatewayProcess) -> float:
    families = text_string_to_metric_families(httpx.get(f"{gateway.url}/metrics").text)
    [value] = [
        sample.value
        for family in families
        for sample in family.samples
        if "fast_path_tokens" in sample.name and sample.name.endswith("_total")
    ]
    return value


OPTIONS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "n": ([CHAT, TEXT], {"n": 2}),
    "logprobs of a chat": ([CHAT], {"logprobs": True, "top_logprobs": 2}),
    "logprobs of a completion": ([TEXT], {"logprobs": 2}),
    "interval": ([CHAT, TEXT], {"stream_interval": 3}),
    "counts so far": (
        [CHAT, TEXT],
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ),
    "obfuscation": ([CHAT, TEXT], {"stream_options": {"include_obfuscation": True}}),
    "token ids": ([CHAT, TEXT], {"return_token_ids": True}),
    "echo": ([TEXT], {"echo": True}),
    "echo with logprobs": ([TEXT], {"echo": True, "logprobs": 1}),
    "several prompts": ([TEXT], {"prompt": ["hi", "hello"]}),
    "one token": ([CHAT, TEXT], {"max_tokens": 1}),
    "two tokens": ([CHAT, TEXT], {"max_tokens": 2}),
}
CASES = [
    pytest.param(path, fields, id=f"{name}-{path.rpartition('/')[0][4:]}")
    for name, (paths, fields) in OPTIONS.items()
    for path in paths
]


@pytest.mark.parametrize(("path", "fields"), CASES)
@pytest.mark.parametrize("model", ["talks", "steady"])
def test_stream_has_the_text_of_a_complete_response_with_every_option(gateway, model, path, fields):
    """Whether or not the option allows direct writes."""
    without = {name: value for name, value in fields.items() if not name.startswith("stream")}

    stream = streamed(gateway, path, model, **fields)

    assert stream[-1] == "[DONE]"
    assert wholes(whole(gateway, path, model, **without)) == texts(stream)


@pytest.mark.honours("chat.stream_interval", "completions.stream_interval")
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_stream_interval_gathers_text_before_the_direct_write(gateway, path):
    each, shared = (
        streamed(gateway, path, "steady", stream_interval=interval) for interval in (1, 8)
    )

    assert len(shared) < len(each) / 2
    assert texts(shared) == texts(each)


def test_continuous_usage_rises_by_one_with_each_token(gateway):
    """So no token was written directly."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, _, _ = streamed(gateway, TEXT, "steady", stream_options=options)

    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk["choices"]]
    assert sorted(counts) == counts
    assert counts[-1] == 40
    # The token "" makes no frame; the next frame counts it.
    told = {number for number in range(1, 41) if TOKENS[(number - 1) % len(TOKENS)]}
    assert told <= set(counts)


def test_concurrent_streams_do_not_mix_their_text(gateway):
    expected = {0: "".join((TOKENS * 4)[:40])}

    def ask(number: int) -> bool:
        model = ("talks", "steady")[number % 2]
        return texts(streamed(gateway, (CHAT, TEXT)[number // 2 % 2], model)) == expected

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(64)))


def test_http_1_0_client_reads_events_without_chunks(gateway):
    """It gets the same events; the end of the connection ends the body."""
    asked = json.dumps(body(TEXT, "talks", stream=True)).encode()
    line = f"POST {TEXT} HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as connection:
        connection.sendall(line.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(asked), asked))
        response = connection.makefile("rb").read()

    head, _, stream = response.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert texts(events(stream)) == wholes(whole(gateway, TEXT, "talks"))


def test_disconnect_ends_the_request_in_the_engine(gateway):
    before = ended(gateway, "endless")
    with closing(SlowClient(gateway, body(TEXT, "endless", stream=True))) as client:
        client.begun()
        assert ended(gateway, "endless") == before

    until(lambda: ended(gateway, "endless") > before)
    assert ended(gateway, "endless") == before + 1


def test_disconnect_of_a_slow_client_discards_its_answer(gateway):
    """Even if much of the answer is buffered."""
    before = ended(gateway, "long")
    with closing(SlowClient(gateway, body(TEXT, "long", stream=True))) as client:
        client.begun()
        until(lambda: ended(gateway, "long") == before + 1)

    assert wholes(whole(gateway, TEXT, "talks")) == texts(streamed(gateway, TEXT, "talks"))


def reset(connection: socket.socket) -> None:
    """Close with a reset, so that the server's next write fails."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


AN_ID = re.compile(rb'"id":"([^"]+)"')


def test_new_clients_get_no_text_of_earlier_connections(gateway):
    def begin(number: int) -> socket.socket:
        asked = json.dumps(body(TEXT, "endless", stream=True, prompt="a" * number)).encode()
        connection = socket.create_connection(("127.0.0.1", gateway.port), timeout=60)
        head = f"POST {TEXT} HTTP/1.1\r\nhost: localhost\r\nx-request-id: client-{number}\r\n"
        connection.sendall(f"{head}content-length: {len(asked)}\r\n\r\n".encode() + asked)
        return connection

    before = ended(gateway, "endless")
    open_ones: dict[int, socket.socket] = {}
    read: dict[int, bytes] = {}
    for number in range(1, 121):
        open_ones[number], read[number] = begin(number), b""
        for each, connection in open_ones.items():
            read[each] += connection.recv(4096)
            while not AN_ID.search(read[each]):  # the head may arrive alone
                read[each] += connection.recv(4096)
        if number % 3 == 0:
            for gone in list(open_ones)[:2]:
                reset(open_ones.pop(gone))
    for connection in open_ones.values():
        connection.close()

    for number, received in read.items():
        head, _, rest = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), received
        assert b"x-request-id: client-%d\r\n" % number in head + b"\r\n"
        assert len(set(AN_ID.findall(rest))) == 1
        for chunk in whole_chunks(rest):
            assert chunk.startswith(b"data: ")
            assert chunk.endswith(b"\n\n")
    until(lambda: ended(gateway, "endless") == before + 120)


def whole_chunks(rest: bytes) -> Iterator[bytes]:
    """The complete chunks of a body that may be cut off anywhere, by their sizes."""
    while b"\r\n" in rest:
        size, _, rest = rest.partition(b"\r\n")
        chunk, rest = rest[: int(size, 16)], rest[int(size, 16) :]
        if rest[:2] == b"\r\n":
            yield chunk
        rest = rest[2:]


@contextmanager
def slow_clients(gateway: GatewayProcess, number: int) -> Iterator[list[SlowClient]]:
    """Clients of the long answer, which the engine finishes before any of them reads."""
    before = ended(gateway, "long")
    asked = body(TEXT, "long", stream=True, **USAGE)
    with ExitStack() as opened:
        clients = [opened.enter_context(closing(SlowClient(gateway, asked))) for _ in range(number)]
        for client in clients:
            client.begun()
        until(lambda: ended(gateway, "long") == before + number)
        yield clients


def assert_complete(stream: list[Any]) -> None:
    assert texts(stream)[0] == LONG_TOKEN * LONG_TOKENS
    assert (stream[-2]["usage"]["completion_tokens"], stream[-1]) == (LONG_TOKENS, "[DONE]")


def test_slow_client_gets_everything_and_blocks_no_other(gateway):
    with slow_clients(gateway, 1) as [client]:
        other = streamed(gateway, CHAT, "steady")
        stream = client.read()

    assert "".join((TOKENS * 4)[:40]) == texts(other)[0]
    assert_complete(stream)


def test_slow_client_gets_the_text_before_a_failure(gateway):
    """The error comes last."""
    before = ended(gateway, "fails_long")
    with closing(SlowClient(gateway, body(TEXT, "fails_long", stream=True))) as client:
        client.begun()
        until(lambda: ended(gateway, "fails_long") == before + 1)
        *chunks, last = client.read()

    assert list(last) == ["error"]
    assert len(LONG_TOKEN) * (LONG_TOKENS - 1) == len(texts(chunks)[0])


@pytest.mark.slow
def test_buffers_of_slow_clients_stay_below_three_times_their_answers(gateway):
    process = psutil.Process(gateway.pid)
    with slow_clients(gateway, 1) as [client]:
        assert_complete(client.read())  # the allocator now has what it keeps
    at_first = process.memory_info().rss

    with slow_clients(gateway, 2) as clients:
        most = process.memory_info().rss
        for client in clients:
            assert_complete(client.read())

    assert most - at_first < 3 * 2 * len(LONG_TOKEN) * LONG_TOKENS
