"""Two raylets on this machine, as two nodes, and a gateway whose engine spans both.

Runs in Ray's environment, below `.venv/clients`: the model repository as its argument, and a folder
of weights if vLLM is to say which worker runs where; a JSON object on stdout.
"""

import json
import sys
import urllib.request
from typing import Any

import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from openai_frontend.ray import app
from tests.ports import free_port

TENSOR, PIPELINE = 2, 2  # parallel sizes: a node for each stage of the pipeline


def main() -> None:
    repository, *weights = sys.argv[1:]
    cluster = Cluster(
        initialize_head=True,
        # Ray only counts GPUs
        head_node_args={"num_cpus": 2, "num_gpus": TENSOR, "include_dashboard": False},
    )
    try:
        cluster.add_node(num_cpus=2, num_gpus=TENSOR, resources={"gateway": 1})
        ray.init(address=cluster.address, log_to_driver=False)
        port = free_port()
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        settings = {"model_repository": [repository]}
        own = {"num_cpus": 0.5, "resources": {"gateway": 1}}
        bundles = [{"GPU": 1}] * TENSOR * PIPELINE
        serve.run(app({"settings": settings, **own, "bundles": bundles}), blocking=False)
        found = groups()
        answer: dict[str, Any] = {"models": models(port), "groups": found}
        if weights:
            answer["workers"] = workers(found[0]["id"], weights[0])
        json.dump(answer, sys.stdout)
    finally:
        ray.shutdown()
        cluster.shutdown()


def groups() -> list[dict[str, Any]]:
    """The placement groups, with the resources and the node of each bundle."""
    return [
        {
            "id": name,
            "state": each["state"],
            "bundles": [each["bundles"][number] for number in sorted(each["bundles"])],
            "nodes": [each["bundles_to_node_id"][number] for number in sorted(each["bundles"])],
        }
        for name, each in placement_group_table().items()
    ]


def models(port: int) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=60) as answer:
        return [model["id"] for model in json.load(answer)["data"]]


@ray.remote(num_cpus=0)
class Engine:
    """In a placement group, as a replica is."""

    def workers(self, weights: str) -> dict[str, Any]:
        """A dry run of vLLM's executor, up to the start of its workers: its name, and the bundle
        and the node of each rank.
        """
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.executor import Executor
        from vllm.v1.executor.ray_utils import get_bundles_sorted_by_node, initialize_ray_cluster

        type(current_platform).ray_device_key = "GPU"  # vLLM for CPUs has no key
        config = AsyncEngineArgs(
            model=weights,
            tensor_parallel_size=TENSOR,
            pipeline_parallel_size=PIPELINE,
            distributed_executor_backend="ray",
        ).create_engine_config()
        parallel = config.parallel_config
        assert parallel.placement_group is not None
        initialize_ray_cluster(parallel, require_gpu_on_driver=False)
        ranks = get_bundles_sorted_by_node(parallel.placement_group)
        name = Executor.get_class(config).__name__
        return {"executor": name, "ranks": [(bundle, node) for bundle, node, _ in ranks]}


def workers(group: str, weights: str) -> dict[str, Any]:
    placement = PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group)))
    strategy = PlacementGroupSchedulingStrategy(placement, placement_group_bundle_index=0)
    engine = Engine.options(scheduling_strategy=strategy).remote()  # type: ignore[attr-defined]
    found: dict[str, Any] = ray.get(engine.workers.remote(weights))
    return found


if __name__ == "__main__":
    main()
