"""Two raylets on this machine, as two nodes, and a gateway whose engine spans both.

Runs in Ray's environment, below `.venv/clients`: the model repository as its argument, a JSON
object on stdout.
"""

import json
import sys
import urllib.request
from typing import Any

import ray
from ray import serve
from ray.cluster_utils import Cluster

from openai_frontend.ray import app
from tests.gateway_process import free_port


def main() -> None:
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False}
    )
    try:
        cluster.add_node(num_cpus=2, resources={"engine": 2})
        ray.init(address=cluster.address, log_to_driver=False)
        port = free_port()
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        settings = {"model_repository": [sys.argv[1]]}
        bundles = {"bundles": [{"CPU": 1, "engine": 1}], "placement": "STRICT_SPREAD"}
        serve.run(app({"settings": settings, "num_cpus": 0.5, **bundles}), blocking=False)
        answer = {"nodes": len(ray.nodes()), "groups": groups(), "models": models(port)}
        json.dump(answer, sys.stdout)
    finally:
        ray.shutdown()
        cluster.shutdown()


def groups() -> list[dict[str, Any]]:
    """The resources of each bundle of the placement groups, and the number of their nodes."""
    tables = ray.util.placement_group_table().values()
    return [
        {
            "state": each["state"],
            "bundles": list(each["bundles"].values()),
            "nodes": len(set(each["bundles_to_node_id"].values())),
        }
        for each in tables
    ]


def models(port: int) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=60) as answer:
        return [model["id"] for model in json.load(answer)["data"]]


if __name__ == "__main__":
    main()
