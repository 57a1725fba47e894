"""Prompts computed by one vLLM, answers by another, with NIXL over TCP (docs/disaggregation.md)."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from tests.fast.auth import key_files
from tests.scale import prefill_decode
from tests.scale.prefill_decode import BLOCK, LEASE_S, OTHER_KEY, Pair

pytestmark = [pytest.mark.slow, pytest.mark.engine]

ANSWERS = 200
REMOTE = "openai_frontend_remote_prefills_total"
ENDED = "openai_frontend_generations_total"
LOCAL = "openai_frontend_local_prefills_total"
EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"
AFTER_EXPIRY = "vllm:nixl_num_notifications_after_expiry_total"
SOURCE = "vllm:prompt_tokens_by_source_total"
USAGE = "vllm:kv_cache_usage_perc"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with prefill_decode.running(tmp_path_factory.mktemp("disaggregation")) as started:
        yield started


def prompts(count: int, seed: int) -> list[list[int]]:
    """Prompts of 40 to 500 tokens."""
    numbers = random.Random(seed)
    return [
        [numbers.randrange(5, 400) for _ in range(numbers.randrange(40, 500))] for _ in range(count)
    ]


def answers(pair: Pair, role: str, asked: list[list[int]], **fields: Any) -> list[Any]:
    """The choice of each prompt, with its token ids; eight requests at a time."""

    def ask(prompt: list[int]) -> Any:
        response = pair.ask(role, prompt, return_token_ids=True, **fields)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(ask, asked))


def tokens(choices: list[Any]) -> list[list[int]]:
    return [each["token_ids"] for each in choices]


def test_answers_equal_those_of_one_engine(pair: Pair) -> None:
    """Greedy answers are token-identical, and the decode engine computes at most one block of a
    prompt. What it reads is no hit of its prefix cache.
    """
    asked = prompts(ANSWERS, seed=1)
    prompt_tokens = sum(map(len, asked))
    steps = "vllm:iteration_tokens_total_sum"
    before = pair.value("decode", steps)

    found = tokens(answers(pair, "decode", asked))

    assert found == tokens(answers(pair, "prefill", asked))
    remote, here = pair.value("decode", REMOTE), pair.value("decode", LOCAL)
    assert remote + here == ANSWERS
    assert remote > ANSWERS / 2, "a busy prefill server may be too slow for some"
    computed = pair.value("decode", steps) - before - sum(map(len, found))
    moved = pair.value("decode", SOURCE, source="external_kv_transfer")
    assert moved > remote * 40
    assert computed <= remote * BLOCK + prompt_tokens - moved
    assert pair.value("decode", "openai_frontend_cached_prompt_tokens_total") == 0


def test_engines_leave_the_processor_alone(pair: Pair) -> None:
    """Without requests, NIXL's thread does not spin; and vLLM's core is not the only one."""
    engines = [process for each in pair.running.values() for process in each.engine_processes()]
    begun = [sum(each.cpu_times()[:2]) for each in engines]
    time.sleep(3)
    used = [sum(each.cpu_times()[:2]) - before for each, before in zip(engines, begun, strict=True)]

    assert len(engines) == 2
    assert max(used) < 0.6, "a spinning thread takes 3 s, or what the machine has left"
    cores = psutil.Process().cpu_affinity()
    assert [each.cpu_affinity() for each in engines] == [cores, cores]


def test_requests_that_need_more_than_text_are_transferred_too(pair: Pair) -> None:
    """Log probabilities take another way through the engine client; so do streams."""
    [prompt] = prompts(1, seed=2)
    before = pair.value("decode", REMOTE)

    [remote] = answers(pair, "decode", [prompt], logprobs=2)
    [here] = answers(pair, "prefill", [prompt], logprobs=2)

    assert remote["logprobs"]["tokens"] == here["logprobs"]["tokens"]
    assert remote["logprobs"]["token_logprobs"] == pytest.approx(here["logprobs"]["token_logprobs"])
    assert pair.value("decode", REMOTE) == before + 1


@pytest.mark.parametrize(
    "fields",
    [
        {"kv_transfer_params": {"do_remote_prefill": True}},
        {"vllm_xargs": {"kv_transfer_params": "x"}},
    ],
    ids=["field", "vllm_xargs"],
)
def test_clients_cannot_send_transfers(pair: Pair, fields: dict[str, Any]) -> None:
    """With either server."""
    for role in pair.running:
        response = pair.ask(role, [5, 6, 7], **fields)
        assert response.status_code == 400
        assert "kv_transfer_params" in response.json()["error"]["message"]


def test_kserve_clients_cannot_send_transfers(pair: Pair) -> None:
    response = httpx.post(
        f"{pair.running['decode'].url}/v2/models/demo/generate",
        json={"text_input": "hi", "kv_transfer": "{}"},
    )

    assert response.status_code == 400
    assert response.json()["error"] == "tensor 'kv_transfer': it is reserved for the gateway"


def test_internal_listener_needs_a_key_with_its_scope(pair: Pair) -> None:
    """401 without a known key, 403 with other scopes; the public port has no such route."""
    body = {"model": "demo", "prompt_token_ids": [5, 6, 7]}
    url = f"{pair.listener}/internal/prefill"

    assert httpx.post(url, json=body).status_code == 401
    assert httpx.post(url, json=body, headers=key_files.bearer("wrong")).status_code == 401
    assert httpx.post(url, json=body, headers=key_files.bearer(OTHER_KEY)).status_code == 403
    public = f"{pair.running['prefill'].url}/internal/prefill"
    known = key_files.bearer(prefill_decode.KEY)
    assert httpx.post(public, json=body, headers=known).status_code == 404


def test_router_can_choose_only_listed_servers(pair: Pair) -> None:
    """The header of a server that is not in prefill_peers is a 400 that names it."""
    url = f"{pair.running['decode'].url}/v1/completions"
    [prompt] = prompts(1, seed=3)
    body = {"model": "demo", "prompt": prompt, "max_tokens": 2}
    before = pair.value("decode", REMOTE)

    def ask(address: str) -> httpx.Response:
        headers = {"x-prefiller-host-port": address}
        return httpx.post(url, json=body, headers=headers, timeout=60)

    assert ask(pair.proxy.url.removeprefix("http://")).status_code == 200
    assert pair.value("decode", REMOTE) == before + 1
    refused = ask("203.0.113.7:9100")
    assert refused.status_code == 400
    assert "203.0.113.7:9100" in refused.json()["error"]["message"]


def test_transfer_of_another_prompt_is_not_used(pair: Pair) -> None:
    """vLLM would generate from it without an error. The digest differs, so the answer is right."""
    first, second = ([random.Random(seed).randrange(5, 400) for _ in range(96)] for seed in (4, 5))
    replies: list[bytes] = []

    def swap(reply: bytes) -> bytes:
        replies.append(reply)
        return replies[0]

    with pair.proxy.changing(swap):
        found = [answers(pair, "decode", [prompt])[0]["token_ids"] for prompt in (first, second)]

    assert found == tokens(answers(pair, "prefill", [first, second]))
    assert len(replies) == 2
    assert pair.value("decode", LOCAL, reason="digest") == 1


def test_transfer_after_its_lease_is_not_read(pair: Pair) -> None:
    """The blocks may have been used again, and vLLM would read them without an error."""
    [prompt] = prompts(1, seed=6)

    def delay(reply: bytes) -> bytes:
        time.sleep(LEASE_S * 0.75)
        return reply

    with pair.proxy.changing(delay):
        found = answers(pair, "decode", [prompt])

    assert tokens(found) == tokens(answers(pair, "prefill", [prompt]))
    assert pair.value("decode", LOCAL, reason="not_transferred") == 1
    assert pair.value("prefill", AFTER_EXPIRY) == 0


def test_rejected_request_frees_the_other_engines_blocks(pair: Pair) -> None:
    """At once, not when the lease ends."""
    [prompt] = prompts(1, seed=7)
    pair.wait_for("prefill", USAGE, 0)
    before = pair.value("prefill", EXPIRED)

    response = pair.ask("decode", prompt, structured_outputs={"grammar": "root ::= ("})

    assert response.status_code == 400
    pair.wait_for("prefill", USAGE, 0)
    assert pair.value("prefill", EXPIRED) == before


def test_clients_that_leave_hold_no_blocks(pair: Pair) -> None:
    """Whenever they leave: after the lease, both caches are empty."""
    url = f"{pair.running['decode'].url}/v1/completions"

    def leave(number: int) -> None:
        body = {"model": "demo", "prompt": asked[number], "max_tokens": 500, "stream": True}
        with contextlib.suppress(httpx.TimeoutException):
            httpx.post(url, json=body, timeout=0.01 + 0.004 * number)

    asked = prompts(40, seed=8)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(leave, range(40)))

    for role in pair.running:
        pair.wait_for(role, USAGE, 0)
    assert pair.value("prefill", AFTER_EXPIRY) == 0


def test_killed_prefill_server_costs_no_answer(pair: Pair) -> None:
    """It dies while it computes and while its cache is read; the decode server goes on by itself,
    and uses the server again after its restart.
    """
    asked = prompts(60, seed=9)
    expected = tokens(answers(pair, "prefill", asked))
    before = pair.value("decode", REMOTE)
    failed = pair.value("decode", ENDED, finish_reason="error")
    prefill = pair.running["prefill"]

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(answers, pair, "decode", asked[:40])
        while pair.value("decode", REMOTE) < before + 10 and not found.done():
            time.sleep(0.02)
        os.killpg(prefill.pid, signal.SIGKILL)
        prefill.wait()
        later = answers(pair, "decode", asked[40:])  # on a busy machine the others may have ended
        assert tokens([*found.result(), *later]) == expected

    assert pair.value("decode", LOCAL, reason="no_peer") > 0
    assert pair.value("decode", ENDED, finish_reason="error") == failed
    pair.start("prefill").wait_until_ready()
    pair.running["decode"].wait_for_line("prefill server is down")
    _wait_for_peer(pair)
    before = pair.value("decode", REMOTE)
    again = prompts(8, seed=10)
    assert tokens(answers(pair, "decode", again)) == tokens(answers(pair, "prefill", again))
    assert pair.value("decode", REMOTE) == before + 8


def _wait_for_peer(pair: Pair) -> None:
    deadline = time.monotonic() + 120
    while pair.running["decode"].output().count("prefill server is up") < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
