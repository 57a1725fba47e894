"""KV events of the mock engine, read with vLLM's own types, and the endpoint of both engines."""

import itertools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
import zmq

from openai_frontend.engines.engine import DeltaSink, ModelSpec
from openai_frontend.engines.kv_events import LOOPBACK_ENDPOINT
from openai_frontend.engines.mock import MockEngine
from openai_frontend.generation import Adapter, GenerationRequest
from tests.ports import free_port

_numbers = itertools.count()


def ask(engine: MockEngine, tokens: list[int], **fields: Any) -> None:
    """Nobody reads the output."""
    name = f"request {next(_numbers)}"
    request = GenerationRequest(request_id=name, prompt_token_ids=tokens, **fields)
    engine.generate(request, Mock(spec=DeltaSink))


def loaded(**arguments: Any) -> MockEngine:
    engine = MockEngine()
    arguments = {"tokenizer": "t", "prefix_cache_blocks": 3, "block_size": 2, **arguments}
    folder = Path("mock")
    engine.load(ModelSpec(name="m", version=1, folder=folder, parameters={}, arguments=arguments))
    return engine


@pytest.fixture
def endpoint() -> str:
    return LOOPBACK_ENDPOINT.replace("5557", str(free_port()))


@pytest.fixture
def events(endpoint: str) -> Iterator["zmq.Socket[bytes]"]:
    """A subscriber of 127.0.0.1, as a router on this machine is."""
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.linger = 0
        socket.rcvtimeo = 200
        socket.subscribe("")
        socket.connect(f"tcp://127.0.0.1:{endpoint.rpartition(':')[2]}")
        yield socket


def received(socket: "zmq.Socket[bytes]") -> tuple[int, list[Any]]:
    """The number and the events of a message, with the types of a consumer that uses vLLM's."""
    from vllm.distributed.kv_events import KVEventBatch

    _, number, payload = socket.recv_multipart()
    return int.from_bytes(number, "big"), msgspec.msgpack.decode(payload, type=KVEventBatch).events


@pytest.mark.slow  # imports vLLM
async def test_mock_publishes_vllms_events(endpoint, events):
    """Stored blocks with their tokens, parent, adapter and salt, and evicted ones."""
    config = {"enable_kv_cache_events": True, "endpoint": endpoint}
    engine = loaded(kv_events_config=config)
    for first in range(100, 200):  # nothing says when the subscription has begun
        ask(engine, [first, first])
        with suppress(zmq.Again):
            number, [stored, *_] = received(events)
            break
    events.rcvtimeo = 60_000
    while stored.token_ids != [first, first]:  # those before may have come late
        number, [stored, *_] = received(events)
    poet = Adapter(name="poet", id=1)
    ask(engine, [1, 1, 2, 2, 3], adapter=poet, cache_salt="tenant")
    ask(engine, [1, 1, 2, 2, 4, 4], adapter=poet, cache_salt="tenant")
    ask(engine, [1, 1, 2, 2, 4, 4], adapter=poet, cache_salt="tenant")  # changes nothing
    ask(engine, [5, 5])
    (_, [one, *_]), (_, [two, *_]), (last, [three, removed]) = (received(events) for _ in range(3))
    engine.unload()

    assert (one.token_ids, one.parent_block_hash, one.block_size) == ([1, 1, 2, 2], None, 2)
    assert (one.lora_name, one.extra_keys) == ("poet", [("poet", "tenant"), ("poet",)])
    assert (two.token_ids, two.parent_block_hash) == ([4, 4], one.block_hashes[1])
    assert (three.token_ids, three.lora_name, three.extra_keys) == ([5, 5], None, [None])
    assert removed.block_hashes == two.block_hashes
    assert last == number + 3


@pytest.mark.slow  # imports vLLM
def test_vllm_listens_on_the_default_endpoint(endpoint, events):
    """vLLM connects to an address without `*` or `::`: no router could then subscribe to it."""
    from vllm.distributed.kv_events import AllBlocksCleared, KVEventBatch, ZmqEventPublisher

    publisher = ZmqEventPublisher(0, endpoint)
    try:
        for _ in range(100):
            publisher.publish(KVEventBatch(ts=0.0, events=[AllBlocksCleared()]))
            with suppress(zmq.Again):
                assert received(events)[1] == [AllBlocksCleared()]
                return
    finally:
        publisher.shutdown()
    raise AssertionError("no event arrived")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tokenizer": None}, "kv_events_config: needs `tokenizer` and `prefix_cache_blocks`"),
        ({"prefix_cache_blocks": 0}, "kv_events_config: needs `tokenizer` and"),
        ({"kv_events_config": {"replay_endpoint": "x"}}, "the mock has no replay_endpoint"),
        ({"kv_events_config": {"endpoint": "tcp://*:x"}}, r"endpoint tcp://\*:x: "),
    ],
)
def test_events_that_cannot_be_sent_are_refused(changed, message, endpoint):
    config = {"endpoint": endpoint, **changed.pop("kv_events_config", {})}
    with pytest.raises(ValueError, match=message):
        loaded(kv_events_config={"enable_kv_cache_events": True, **config}, **changed)
