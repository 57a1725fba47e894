"""Sessions of coding agents keep their prefix cache through each router to three gateways."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import httpx
import pytest

from tests import mock_models
from tests.scale import ray_cluster, routers
from tests.scale.agent_sessions import (
    BY_HEADER,
    BY_KEY,
    MODEL,
    SCRIPT,
    TURNS,
    CachedPrompt,
    interleaved,
    sessions,
)
from tests.scale.ray_cluster import Cluster

pytestmark = pytest.mark.slow

GOAL = 0.95  # of each prompt from the second turn on
RAY_REPLICAS = 3
# Ray Serve hashes no API keys, so `session` spreads agents that only have one
RAY_AGENTS = {"session": (*BY_HEADER, "qwen-code-responses"), "prefix": (*BY_HEADER, *BY_KEY)}


async def asked(url: str, names: Sequence[str]) -> list[CachedPrompt]:
    limits = httpx.Limits(max_keepalive_connections=0)  # each request chooses a gateway anew
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        return await interleaved(client, sessions(names, url))


def worst(found: Sequence[CachedPrompt]) -> CachedPrompt:
    """The turn after the first one with the least cached share."""
    return min((each for each in found if each.turn > 1), key=lambda each: each.share)


def gateways(found: Sequence[CachedPrompt]) -> dict[str, set[str]]:
    """Those that answered each session."""
    by_session: dict[str, set[str]] = defaultdict(set)
    for each in found:
        by_session[each.session].add(each.gateway)
    return by_session


async def test_sessions_keep_their_cache(router):
    """By the session that an agent names, else by its key, whatever its API."""
    found = await asked(router.url, (*BY_HEADER, *BY_KEY))

    assert worst(found).share >= GOAL, worst(found)
    used = gateways(found).values()
    assert {len(names) for names in used} == {1}
    assert len(set.union(*used)) == 3
    assert {each.turn for each in found} == set(range(1, TURNS + 1))


async def test_sessions_lose_their_cache_in_rotation(replicas, tmp_path):
    """So the test above can fail: what sessions of one agent share is not enough."""
    ports = [each.port for each in replicas.running.values()]

    with routers.running(
        lambda folder, ports: routers.haproxy(folder, ports, balance="roundrobin"), tmp_path, ports
    ) as rotating:
        found = await asked(rotating.url, BY_HEADER)

    assert worst(found).share < GOAL


@pytest.fixture(scope="module", params=RAY_AGENTS)
def ray(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Cluster]]:
    """Ray Serve with each of the routings that know conversations."""
    folder = tmp_path_factory.mktemp("ray")
    mock_models.write_with_turns(folder / "models", MODEL, **SCRIPT)
    option = f"--routing={request.param}"
    with ray_cluster.started(folder, folder / "models", option, replicas=RAY_REPLICAS) as started:
        started.wait_for(RAY_REPLICAS)
        yield request.param, started


async def test_sessions_keep_their_cache_in_ray_serve(ray):
    routing, cluster = ray
    found = await asked(cluster.url, RAY_AGENTS[routing])

    assert worst(found).share >= GOAL, worst(found)
    assert {len(names) for names in gateways(found).values()} == {1}
    assert len({each.gateway for each in found}) > 1
