"""A gateway whose engine spans two nodes: a dry run, because the mock engine has no workers."""

import json
import subprocess

import pytest

from openai_frontend.cli import main
from tests import mock_models
from tests.gateway_process import ROOT
from tests.scale import ray_cluster

pytestmark = pytest.mark.slow


def test_bundles_are_on_different_nodes(tmp_path):
    """Ray reserves the bundle of the replica on one raylet and that of the workers on the other,
    and the gateway answers.
    """
    mock_models.write_with_tokenizer(tmp_path / "models", "mock")
    assert main(["ray", "init", str(tmp_path / "models"), f"--output={tmp_path}"]) == 0
    done = subprocess.run(
        [ray_cluster.PYTHON, "-m", "tests.scale.raylets", str(tmp_path / "models")],
        env=ray_cluster.environment(tmp_path),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr[-5000:]
    answer = json.loads(done.stdout)
    assert (answer["nodes"], answer["models"]) == (2, ["mock"])
    [group] = answer["groups"]
    assert (group["state"], group["nodes"]) == ("CREATED", 2)
    assert group["bundles"] == [{"CPU": 0.5}, {"CPU": 1, "engine": 1}]
