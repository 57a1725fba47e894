"""When a decode server asks a prefill server, and what it does with each reply."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pytest

from openai_frontend.errors import InferenceFailed, InvalidRequest, ModelUnavailable
from openai_frontend.generation import (
    CompletionDelta,
    GenerationRequest,
    KVTransfer,
    SamplingParams,
    TokenCounts,
)
from openai_frontend.media.modalities import ImageInput
from openai_frontend.metrics.gateway import GatewayMetrics
from openai_frontend.model_facts import KVTransferFacts, ModelFacts
from openai_frontend.models import prefill_peers, remote_prefill
from openai_frontend.models.prefill_peers import PrefillPeer, PrefillPeers
from openai_frontend.models.remote_prefill import (
    Bursts,
    RemotePrefill,
    prompt_digest,
    role_problem,
)
from schemas.transfer import PrefillRequest, PrefillResponse
from tests.core.triton.waiting import until

PROMPT = list(range(40))
KEY = "sk-key"


class Peer:
    """A prefill server on a real socket, with the replies that a test gives it."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.status = 200
        self.changes: dict[str, Any] = {}  # of the right reply
        self.params: dict[str, Any] = {}  # of its kv_transfer_params
        self.delay_s = 0.0
        self.port = 0
        self.handlers: set[Any] = set()

    def reply(self, asked: dict[str, Any]) -> dict[str, Any]:
        names = ("model", "adapter", "cache_salt")
        params = {
            "do_remote_prefill": True,
            "remote_block_ids": [[1, 2]],
            "remote_host": "127.0.0.1",
            "remote_port": self.port,
        }
        return {
            "digest": prompt_digest(
                asked["prompt_token_ids"], **{name: asked[name] for name in names}
            ),
            "lease_s": 30.0,
            "prefill_s": 0.0,
            "kv_transfer_params": params | self.params,
        } | self.changes

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.handlers.add(asyncio.current_task())
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await self.answer_one(reader, writer)

    async def answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        [length] = [line.split(": ")[1] for line in lines if "content-length" in line] or ["0"]
        content, status = await reader.readexactly(int(length)), 200
        body = b'{"status": "ready"}'
        if content:
            assert f"authorization: bearer {KEY}" in lines
            self.requests.append(orjson.loads(content))
            await asyncio.sleep(self.delay_s)
            body, status = orjson.dumps(self.reply(self.requests[-1])), self.status
        head = b"HTTP/1.1 %d x\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
        writer.write(head + body)

    async def stop(self) -> None:
        """Without waiting for delayed replies, or until clients close their idle connections."""
        for handler in self.handlers:
            handler.cancel()
        await asyncio.wait(self.handlers)


MODEL_FACTS = ModelFacts(
    max_model_len=100, kv_transfer=KVTransferFacts(role="kv_both", block_size=8, blocks=100)
)


@dataclass
class Model:
    """A model that answers at once, and fails as often as a test wants."""

    model_name: str = "demo"
    facts: ModelFacts = MODEL_FACTS
    transferred: int | None = None
    failures: list[Exception] = field(default_factory=list)
    transfers: list[KVTransfer | None] = field(default_factory=list)
    rejected: list[KVTransfer] = field(default_factory=list)

    async def generate_here(self, request: GenerationRequest) -> Bursts:
        self.transfers.append(request.kv_transfer)
        if self.failures:
            raise self.failures.pop()
        counts = TokenCounts(40, 1, transferred_tokens=self.transferred)
        last = CompletionDelta("x", finish_reason="stop", counts=counts)
        request.usage.add([last])
        yield [last]

    async def reject_transfer(self, transfer: KVTransfer) -> None:
        self.rejected.append(transfer)


@dataclass
class World:
    peer: Peer
    peers: PrefillPeers
    remote: RemotePrefill
    metrics: GatewayMetrics
    model: Model = field(default_factory=Model)

    async def text(self, token_ids: list[int] = PROMPT, **fields: Any) -> str:
        request = GenerationRequest(request_id="r", prompt_token_ids=token_ids, **fields)
        bursts = [burst async for burst in self.remote.generate(self.model, request)]
        return "".join(delta.text for burst in bursts for delta in burst)

    def counts(self) -> dict[str, float]:
        """Prompts by where they were computed, or why here."""
        return {
            sample.labels.get("reason", "remote"): sample.value
            for family in self.metrics.registry.collect()
            if family.name.endswith(("local_prefills", "remote_prefills"))
            for sample in family.samples
        }


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer to connect than a gateway waits for it."""
    monkeypatch.setattr(prefill_peers, "_CONNECT_TIMEOUT_S", 30)


@asynccontextmanager
async def serving(peer: Peer) -> AsyncIterator[World]:
    server = await asyncio.start_server(peer.answer, "127.0.0.1", 0)
    peer.port = server.sockets[0].getsockname()[1]
    timeout_s = 0.1 if peer.delay_s else 30  # a busy machine is late, too
    peers = PrefillPeers([f"http://127.0.0.1:{peer.port}"], KEY, timeout_s=timeout_s)
    metrics = GatewayMetrics()
    watching = asyncio.create_task(peers.watch())
    await until(lambda: peers.choose() is not None)
    yield World(peer, peers, RemotePrefill(peers, metrics.prefills, min_tokens=16), metrics)
    watching.cancel()
    await asyncio.wait([watching])
    await peers.close()
    server.close()
    await peer.stop()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with serving(Peer()) as found:
        yield found


async def test_prompt_is_computed_by_the_peer(world: World) -> None:
    """The engine gets the parameters, and may use them for half of the lease."""
    assert await world.text(cache_salt="s") == "x"

    [asked] = world.peer.requests
    assert asked["prompt_token_ids"] == PROMPT
    assert (asked["model"], asked["adapter"], asked["cache_salt"]) == ("demo", None, "s")
    [transfer] = world.model.transfers
    assert transfer is not None
    assert transfer.params["remote_block_ids"] == [[1, 2]]
    assert 0 < transfer.expires_ns - asyncio.get_running_loop().time() * 1e9 < 15e9
    assert world.counts() == {"remote": 1}


async def test_short_and_cached_prompts_are_computed_here(world: World) -> None:
    """Cached: by an earlier prompt of the same cache salt."""
    await world.text(PROMPT[:15])
    await world.text(PROMPT)
    await world.text([*PROMPT, 7, 7, 7])
    await world.text([*PROMPT, 7, 7, 7], cache_salt="other")

    assert world.counts() == {"short": 2, "remote": 2}


async def test_prompt_logprobs_are_computed_here(world: World) -> None:
    await world.text(sampling_params=SamplingParams(prompt_logprobs=1))

    assert world.counts() == {"unsupported": 1}


async def test_prompts_with_images_are_computed_here(world: World) -> None:
    """The other engine would get the placeholders alone, and a text with the same tokens must not
    count as known.
    """
    image = ImageInput(base64="", digest="0" * 64, width=1, height=1, format="png")
    await world.text(images=(image,))
    await world.text()

    assert world.counts() == {"unsupported": 1, "remote": 1}


@pytest.mark.parametrize(
    ("peer", "reason"),
    [
        ({"status": 503}, "peer_refused"),
        ({"status": 401}, "peer_refused"),
        ({"changes": {"digest": "0" * 64}}, "digest"),
        ({"changes": {"lease_s": -1}}, "peer_invalid"),
        ({"changes": {"kv_transfer_params": None}}, "peer_invalid"),
        ({"params": {"remote_block_ids": []}}, "peer_invalid"),
        ({"params": {"do_remote_prefill": False}}, "peer_invalid"),
        ({"params": {"remote_host": 5}}, "peer_invalid"),
        ({"params": {"remote_port": 1}}, "peer_unreachable"),
        ({"delay_s": 600.0}, "peer_timeout"),
    ],
    ids=str,
)
async def test_failures_end_in_a_local_prefill(peer: dict[str, Any], reason: str) -> None:
    """The answer is right, and the engine never sees the transfer."""
    changed = Peer()
    vars(changed).update(peer)
    async with serving(changed) as world:
        assert await world.text() == "x"
        assert world.model.transfers == [None]
        assert world.counts() == {reason: 1}


async def test_server_that_is_down_is_not_asked(world: World) -> None:
    """And costs no time."""
    world.peers.peers[0].mark(healthy=False)

    assert await world.text() == "x"
    assert world.peer.requests == []
    assert world.counts() == {"no_peer": 1}


async def test_engine_that_fails_before_the_first_token_computes_the_prompt(world: World) -> None:
    """An error that the request itself causes is not repeated."""
    world.model.failures = [InferenceFailed("broken")]
    assert await world.text() == "x"
    assert [each is None for each in world.model.transfers] == [False, True]
    assert world.counts() == {"engine_failed": 1}

    for failure in (InvalidRequest("wrong"), ModelUnavailable("died")):
        world.model.failures = [failure]
        with pytest.raises(type(failure)):
            await world.text(list(range(100, 140)))


async def test_transfer_that_the_engine_did_not_read_counts_as_local(world: World) -> None:
    """vLLM recomputes after a failed transfer, and the engine drops a late one."""
    world.model.transferred = 0
    await world.text()

    assert world.counts() == {"not_transferred": 1}


async def test_request_that_ends_before_its_engine_has_the_transfer_rejects_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the other engine frees its blocks."""
    reached, peer = asyncio.Event(), world.peers.peers[0]

    async def reach(host: str, port: int) -> None:
        reached.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(peer, "reach", reach)
    asking = asyncio.create_task(world.text())
    await reached.wait()
    asking.cancel()
    await asyncio.wait([asking])
    await asyncio.sleep(0)

    [transfer] = world.model.rejected
    assert transfer.rejected
    assert transfer.params["remote_block_ids"] == [[1, 2]]


async def test_answer_that_comes_too_late_is_rejected(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request was cancelled, or has timed out and computes its prompt here, while the answer
    was on its way.
    """
    monkeypatch.setattr(remote_prefill, "_ON_ITS_WAY_S", 30)
    for timeout_s in (30, 0):
        sent, ended = asyncio.Event(), asyncio.Event()

        async def prefill(peer: PrefillPeer, asked: PrefillRequest) -> PrefillResponse:
            sent.set()  # noqa: B023  used before the next one
            await ended.wait()  # noqa: B023
            return PrefillResponse.model_validate(world.peer.reply(asked.model_dump()))

        monkeypatch.setattr(world.peers, "prefill", prefill)
        world.peers.timeout_s = timeout_s
        asking = asyncio.create_task(world.text())
        await sent.wait()
        if timeout_s:
            asking.cancel()
            await asyncio.wait([asking])
        else:
            assert await asking == "x"
        assert world.model.rejected == []
        ended.set()
        await until(lambda: bool(world.model.rejected))

        [transfer] = world.model.rejected
        assert transfer.rejected
        assert transfer.params["remote_block_ids"] == [[1, 2]]
        world.model.rejected.clear()
    assert world.counts() == {"peer_timeout": 1}


async def test_server_that_has_not_answered_notices_the_end_of_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection closes, so it stops to compute; there is nothing to reject."""
    monkeypatch.setattr(remote_prefill, "_ON_ITS_WAY_S", 0)
    slow = Peer()
    slow.delay_s = 600.0
    async with serving(slow) as world:
        assert await world.text() == "x"

        await until(lambda: not world.remote._rejections)
        assert (world.model.rejected, world.peers.peers[0].running) == ([], 0)


async def test_digest_depends_on_all_that_the_cache_depends_on() -> None:
    same: dict[str, Any] = {"model": "m", "adapter": None, "cache_salt": None}
    changed = [{"model": "n"}, {"adapter": "a"}, {"cache_salt": "a"}, {"cache_salt": ""}]

    digests = {prompt_digest([1, 2], **same | each) for each in [{}, *changed]}
    digests |= {prompt_digest(ids, **same) for ids in ([1], [2, 1], [1, 2, 0], [258, 0])}

    assert len(digests) == 9


FACTS = KVTransferFacts(role="kv_both")


@pytest.mark.parametrize(
    ("role", "facts", "problem"),
    [
        ("both", None, None),
        ("prefill", FACTS, None),
        ("decode", replace(FACTS, role="kv_consumer"), None),
        ("prefill", None, "role prefill needs kv_transfer_config in model.json, such as"),
        ("decode", replace(FACTS, role="kv_producer"), "set it to kv_consumer or kv_both"),
        ("decode", replace(FACTS, recomputes=False), "kv_load_failure_policy recompute"),
        ("prefill", replace(FACTS, recomputes=False), None),
    ],
)
def test_models_that_do_not_fit_the_role(
    role: str, facts: KVTransferFacts | None, problem: str | None
) -> None:
    found = role_problem(role, facts)

    assert (found is None) == (problem is None)
    assert problem is None or problem in str(found)


async def test_servers_come_and_go(world: World) -> None:
    """One that stays keeps its state, a new one is probed, and one that is gone is not asked."""
    [known] = world.peers.peers
    other = Peer()
    server = await asyncio.start_server(other.answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    world.peers.replace([known.url, url, url])
    await until(lambda: all(peer.healthy for peer in world.peers.peers))
    assert [peer.url for peer in world.peers.peers] == [known.url, url]
    assert world.peers.peers[0] is known

    world.peers.replace([])
    await world.text()
    assert world.counts()["no_peer"] == 1

    world.peers.replace([known.url])
    await until(lambda: world.peers.choose() is not None)
    server.close()
    await other.stop()
