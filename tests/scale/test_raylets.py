"""A gateway whose engine spans two nodes: a dry run, because the workers of vLLM need GPUs."""

import json
import subprocess
from typing import Any

import pytest

from openai_frontend.cli import main
from tests import mock_models
from tests.gateway_process import ROOT
from tests.scale import ray_cluster

pytestmark = pytest.mark.slow

WEIGHTS = ROOT / "model_repository" / "demo" / "1" / "weights"


@pytest.fixture(scope="module")
def spanning(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, Any]:
    """What `tests/scale/raylets.py` prints."""
    folder = tmp_path_factory.mktemp("raylets")
    mock_models.write_with_tokenizer(folder / "models", "mock")
    assert main(["ray", "init", str(folder / "models"), f"--output={folder}"]) == 0
    weights = [WEIGHTS] if request.config.getoption("long") else []
    done = subprocess.run(
        [ray_cluster.PYTHON, "-m", "tests.scale.raylets", folder / "models", *weights],
        env=ray_cluster.environment(folder),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return dict(json.loads(done.stdout))


def test_bundles_are_on_the_nodes_that_have_them(spanning):
    """The gateway answers from the node with its resource; the bundles of its engine's workers are
    on both.
    """
    assert spanning["models"] == ["mock"]
    [group] = spanning["groups"]
    assert group["state"] == "CREATED"
    assert group["bundles"] == [{"CPU": 0.5, "gateway": 1}, *4 * [{"GPU": 1}]]
    own, *workers = group["nodes"]
    assert sorted(map(workers.count, set(workers))) == [2, 2]
    assert own in workers


@pytest.mark.engine
def test_vllm_puts_each_stage_of_a_pipeline_on_a_node(spanning):
    """Its Ray executor takes the bundles of the replica, beginning with those on its node."""
    if "workers" not in spanning:
        pytest.skip("--long runs it")
    assert spanning["workers"]["executor"] == "RayExecutorV2"
    [group] = spanning["groups"]
    own = group["nodes"][0]
    ranks = spanning["workers"]["ranks"]
    assert sorted(bundle for bundle, _ in ranks) == [1, 2, 3, 4]
    assert [node == own for _, node in ranks] == [True, True, False, False]
