"""Limits of a request: accepted at the limit, OpenAI's 400 one beyond it, at little cost.

tests/fast/schemas/test_chat_completions.py has the bounds of the other numbers.

The cost is the CPU time of the gateway's process over several requests, which a busy machine does
not distort. No refused request reaches the core.
"""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cpu_time import within_budget
from tests.gateway_process import GatewayProcess
from tests.sdk_types import check_error

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
REQUIRED: dict[str, dict[str, Any]] = {
    CHAT: {"model": "mock", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1},
    COMPLETIONS: {"model": "mock", "prompt": "hi", "max_tokens": 1},
    EMBEDDINGS: {"model": "mock", "input": "hi"},
}
TRIES = 25
MESSAGE = {"role": "user", "content": "a"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def biases(count: int) -> dict[str, int]:
    return {str(token): 1 for token in range(count)}


def pairs(count: int) -> dict[str, str]:
    return {f"k{i}": "v" for i in range(count)}


def calls(count: int) -> list[Any]:
    return [{"role": "assistant", "content": "", "tool_calls": [CALL] * count}]


def functions(count: int, length: int = 64) -> list[Any]:
    return [{"name": f"{i:0{length}}", "parameters": {"type": "object"}} for i in range(count)]


def tools(count: int, length: int = 64) -> dict[str, Any]:
    """That many tools, for a model whose template renders none."""
    each = [{"type": "function", "function": function} for function in functions(count, length)]
    return {"tools": each, "tool_choice": "none"}


class Gateway:
    """One keep-alive connection to the gateway, so that the cost excludes connecting."""

    def __init__(self, process: GatewayProcess) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=120)
        self._process = psutil.Process(process.pid)

    def post(self, path: str, fields: dict[str, Any] | bytes) -> tuple[int, bytes]:
        """Status and body."""
        body = fields if isinstance(fields, bytes) else json.dumps({**REQUIRED[path], **fields})
        self._connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        return response.status, response.read()

    def cpu_s(self, path: str, fields: dict[str, Any]) -> float:
        """CPU time of one request in the gateway's process: the least of three measurements,
        because other processes slow its caches too.
        """
        return min(self._mean_cpu_s(path, fields) for _ in range(3))

    def _mean_cpu_s(self, path: str, fields: dict[str, Any]) -> float:
        before = self._process.cpu_times()
        for _ in range(TRIES):
            self.post(path, fields)
        after = self._process.cpu_times()
        return (after.user - before.user + after.system - before.system) / TRIES

    def inferences(self) -> float:
        """The number of requests that reached the core, whatever their result."""
        self._connection.request("GET", "/metrics")
        text = self._connection.getresponse().read().decode()
        names = ("nv_inference_request_success", "nv_inference_request_failure")
        families = text_string_to_metric_families(text)
        samples = [sample for family in families for sample in family.samples]
        return sum(sample.value for sample in samples if sample.name.startswith(names))

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(scope="module")
def gateway(mock_gateway: GatewayProcess) -> Iterator[Gateway]:
    made = Gateway(mock_gateway)
    yield made
    made.close()


# path, fields at the limit, fields one beyond it, param, code
LIMITS: list[tuple[str, dict[str, Any], dict[str, Any], str, str]] = [
    (CHAT, {"n": 128}, {"n": 129}, "n", "integer_above_max_value"),
    (COMPLETIONS, {"n": 128}, {"n": 129}, "n", "integer_above_max_value"),
    (COMPLETIONS, {"best_of": 128}, {"best_of": 129}, "best_of", "integer_above_max_value"),
    (COMPLETIONS, {"n": 2, "best_of": 2}, {"n": 2, "best_of": 1}, "best_of",
     "integer_below_min_value"),
    (COMPLETIONS, {"prompt": ["a"] * 2048}, {"prompt": ["a"] * 2049}, "prompt",
     "array_above_max_length"),
    (COMPLETIONS, {"prompt": ["a"] * 16, "n": 128}, {"prompt": ["a"] * 17, "n": 128}, "prompt",
     "array_above_max_length"),
    (COMPLETIONS, {"logprobs": 20}, {"logprobs": 21}, "logprobs", "integer_above_max_value"),
    (COMPLETIONS, {"prompt_logprobs": 20}, {"prompt_logprobs": 21}, "prompt_logprobs",
     "integer_above_max_value"),
    (COMPLETIONS, {"prompt": [299]}, {"prompt": [2**31]}, "prompt[0]", "integer_above_max_value"),
    (CHAT, {"stop": ["a"] * 16}, {"stop": ["a"] * 17}, "stop", "array_above_max_length"),
    (CHAT, {"stop": ["a" * 1024]}, {"stop": ["a" * 1025]}, "stop[0]", "string_above_max_length"),
    (CHAT, {"logprobs": True, "top_logprobs": 20}, {"logprobs": True, "top_logprobs": 21},
     "top_logprobs", "integer_above_max_value"),
    (CHAT, {"logit_bias": biases(200)}, {"logit_bias": biases(1025)}, "logit_bias",
     "object_above_max_length"),
    (CHAT, {"logit_bias": {"5": 100}}, {"logit_bias": {"5": 101}}, "logit_bias.5",
     "decimal_above_max_value"),
    (CHAT, {"messages": calls(256)}, {"messages": calls(257)}, "messages[0].tool_calls",
     "array_above_max_length"),
    (CHAT, {"messages": [MESSAGE] * 100}, {"messages": [MESSAGE] * 2049}, "messages",
     "array_above_max_length"),
    (CHAT, {"messages": [MESSAGE]}, {"messages": []}, "messages", "empty_array"),
    (CHAT, {"temperature": 2}, {"temperature": 2.1}, "temperature", "decimal_above_max_value"),
    (CHAT, {"temperature": 0}, {"temperature": -0.1}, "temperature", "decimal_below_min_value"),
    (CHAT, {"max_tokens": 1}, {"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
    (CHAT, {"max_completion_tokens": 1}, {"max_completion_tokens": 0}, "max_completion_tokens",
     "integer_below_min_value"),
    (CHAT, {"metadata": pairs(16)}, {"metadata": pairs(17)}, "metadata",
     "object_above_max_length"),
    (CHAT, {"metadata": {"k" * 64: "v" * 512}}, {"metadata": {"k": "v" * 513}}, "metadata.k",
     "string_above_max_length"),
    (CHAT, {"safety_identifier": "a" * 128}, {"safety_identifier": "a" * 129},
     "safety_identifier", "string_above_max_length"),
    (CHAT, {"stop_token_ids": [1] * 1024}, {"stop_token_ids": [1] * 1025}, "stop_token_ids",
     "array_above_max_length"),
    (CHAT, {"bad_words": ["a"] * 128}, {"bad_words": ["a"] * 129}, "bad_words",
     "array_above_max_length"),
    (CHAT, tools(256), tools(257), "tools", "array_above_max_length"),
    (CHAT, tools(1, 128), tools(1, 129), "tools[0].function.name", "string_above_max_length"),
    (CHAT, {"functions": functions(256), "function_call": "none"},
     {"functions": functions(257), "function_call": "none"}, "functions",
     "array_above_max_length"),
    (EMBEDDINGS, {"input": ["a"] * 2048}, {"input": ["a"] * 2049}, "input",
     "array_above_max_length"),
]  # fmt: skip
IDS = [f"{path.rpartition('/')[2]}.{param}.{code}" for path, _, _, param, code in LIMITS]


@pytest.mark.parametrize(("path", "fields"), [row[:2] for row in LIMITS], ids=IDS)
def test_at_the_limit(gateway, path, fields):
    """The gateway accepts what OpenAI accepts."""
    status, answer = gateway.post(path, fields)

    assert status == 200, answer


BEYOND = [(path, *rest) for path, _, *rest in LIMITS]


@pytest.mark.parametrize(("path", "fields", "param", "code"), BEYOND, ids=IDS)
def test_beyond_the_limit(gateway, path, fields, param, code):
    """One more gets a 400 with the field and the limit, in under 5 ms, before the core."""
    before = gateway.inferences()

    status, body = gateway.post(path, fields)

    check_error(body)
    error = json.loads(body)["error"]
    assert (400, param, code) == (status, error["param"], error["code"])
    assert error["message"].startswith(f"Invalid '{param}': ")
    assert within_budget(lambda: gateway.cpu_s(path, fields), 0.005)
    assert gateway.inferences() == before


TYPES = {
    "an integer": ["n", "max_tokens", "seed", "top_logprobs", "top_k", "min_tokens"],
    "a decimal": ["temperature", "top_p", "presence_penalty", "frequency_penalty", "min_p"],
    "a boolean": ["stream", "logprobs", "store", "ignore_eos"],
}
VALUES = {
    '"3"': ("a string", []),
    "true": ("a boolean", ["a boolean"]),
    "1e308": ("a decimal", ["a decimal"]),
    "[1]": ("an array", []),
    "{}": ("an object", []),
}
WRONG = [
    (field, value, kind, got)
    for kind, fields in TYPES.items()
    for field in fields
    for value, (got, fits) in VALUES.items()
    if kind not in fits
]


@pytest.mark.parametrize(("field", "value", "kind", "got"), WRONG)
def test_types_are_strict(gateway, field, value, kind, got):
    """No value is converted: "3" is not a number, true is not 1."""
    body = json.dumps({**REQUIRED[CHAT], field: 0}).replace(f'"{field}": 0', f'"{field}": {value}')
    before = gateway.inferences()

    status, answer = gateway.post(CHAT, body.encode())

    error = json.loads(answer)["error"]
    assert (400, field, "invalid_type") == (status, error["param"], error["code"])
    assert error["message"] == (
        f"Invalid type for '{field}': expected {kind}, but got {got} instead."
    )
    assert gateway.inferences() == before


NUMBERS = ["2147483648", "9223372036854775808", "1e308", "1e999", "NaN", "-Infinity", "-1"]
NUMBER_FIELDS = ["n", "max_tokens", "top_logprobs", "temperature", "top_p", "top_k", "seed"]


@pytest.mark.parametrize("field", NUMBER_FIELDS)
@pytest.mark.parametrize("number", NUMBERS)
def test_extreme_numbers(gateway, field, number):
    """A number out of range is a 400, never a 500 or an overflow."""
    body = json.dumps({**REQUIRED[CHAT], "logprobs": True, field: 0})
    body = body.replace(f'"{field}": 0', f'"{field}": {number}')

    status, answer = gateway.post(CHAT, body.encode())

    fits = {("seed", "2147483648"), ("seed", "-1"), ("top_k", "-1"), ("max_tokens", "-1")}
    assert status == (200 if (field, number) in fits else 400), answer
