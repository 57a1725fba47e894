"""The Helm chart: rendered by Helm, checked against Kubernetes' schemas and against the gateway."""

import copy
import json
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import yaml

from openai_frontend.cli import main, ray_init
from openai_frontend.config import grpc_options, ray_application
from openai_frontend.config.loader import load, options
from openai_frontend.config.ray_application import RayArguments
from openai_frontend.metrics.catalog import LOAD_KV_CACHE_BLOCK_SIZE, LOAD_KV_CACHE_BLOCKS
from scripts.setup import clients
from tests.gateway_process import ROOT
from tests.scale import custom_resources

CHART = ROOT / "deploy" / "helm" / "openai-frontend"
VERSIONS = [f"1.{minor}" for minor in range(30, 38)]
VALUE_SETS = {
    path.stem.removesuffix("-values"): path for path in sorted((CHART / "ci").glob("*.yaml"))
}

RAY = [name for name in VALUE_SETS if name.startswith("ray")]
WORKLOADS = ("Deployment", "DisaggregatedSet", "LeaderWorkerSet", "RayService")


NO_POLICY = {
    "roles": {"prefill": {}, "decode": {}},
    "keys": {"existingSecret": "api-keys"},
    "transferKey": {"existingSecret": "transfer-key"},
    "networkPolicy": {"enabled": False},
}

PEER = {"podSelector": {"matchLabels": {"app": "client"}}}
GRPC = {"service": {"grpcPort": 8001}, "networkPolicy": {"enabled": True, "clients": [PEER]}}


def render(values: dict[str, Any], release: str = "chat") -> dict[str, Any]:
    """The answer of `tests/scale/helm.py`."""
    return rendered_sets()[json.dumps([release, values])]


@cache
def rendered_sets() -> dict[str, dict[str, Any]]:
    """The answers for all sets of values of this file, from one process: to load Helm takes half a
    second.
    """
    files = [yaml.safe_load(path.read_text()) for path in VALUE_SETS.values()]
    values = [
        *files,
        {},
        NO_POLICY,
        GRPC,
        *CHANGED,
        *BUDGETS,
        *(values for values, _ in REFUSED.values()),
    ]
    sets = [*(("chat", each) for each in values), *((LONG_NAME, each) for each in NAMED)]
    given = {"chart": str(CHART), "sets": sets, "versions": VERSIONS}
    done = subprocess.run(
        [
            ROOT / clients.CLIENTS / "kubernetes" / "bin" / "python",
            Path(__file__).with_name("helm.py"),
        ],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return dict(zip(map(json.dumps, sets), json.loads(done.stdout), strict=True))


def rendered(name: str) -> dict[str, Any]:
    return render(yaml.safe_load(VALUE_SETS[name].read_text()))


def document(name: str, kind: str) -> dict[str, Any]:
    [found] = [each for each in rendered(name)["documents"] if each["kind"] == kind]
    return dict(found)


def templates(name: str) -> list[dict[str, Any]]:
    """Those of the set's pods. The gateway's is first; of Ray, that of the head; of roles, that of
    the decode servers, which clients reach.
    """
    [spec] = [each["spec"] for each in rendered(name)["documents"] if each["kind"] in WORKLOADS]
    if "rayClusterConfig" in spec:
        cluster = spec["rayClusterConfig"]
        groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
        return [each["template"] for each in groups]
    if "roles" in spec:
        prefill, decode = (each["spec"]["leaderWorkerTemplate"] for each in spec["roles"])
        return [decode["workerTemplate"], prefill["workerTemplate"]]
    if "leaderWorkerTemplate" in spec:
        group = spec["leaderWorkerTemplate"]
        return [group["leaderTemplate"], group["workerTemplate"]]
    return [spec["template"]]


def pod(name: str) -> dict[str, Any]:
    return dict(templates(name)[0]["spec"])


def settings(name: str) -> str:
    return str(document(name, "ConfigMap")["data"]["gateway.yaml"])


@pytest.mark.parametrize("name", VALUE_SETS)
def test_documents_are_valid(name):
    """Kubernetes 1.30 to 1.37 and the definitions of custom resources accept each, without an
    unknown field, and `helm lint` reports nothing.
    """
    answer = rendered(name)
    assert [each["error"] for each in answer["findings"]] == []
    unknown = {kind for kind, _, reason in answer["rejected"] if reason == "no schema"}
    assert [each for each in answer["rejected"] if each[0] not in unknown] == []
    custom = [
        each for each in answer["documents"] if f"{each['apiVersion']} {each['kind']}" in unknown
    ]
    assert {
        each["kind"]: errors for each in custom if (errors := custom_resources.errors(each))
    } == {}


def test_mistakes_in_custom_resources_are_found():
    """In every release of the definition: an unknown field, a wrong type, and a variable that is
    there twice; what only a later release allows, in the older one.
    """
    pool = copy.deepcopy(document("pool", "InferencePool"))
    pool["spec"]["endpointPickerRef"] |= {"grace": 1, "name": 1}
    group = copy.deepcopy(document("group", "LeaderWorkerSet"))
    [container] = group["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]["containers"]
    container["env"].append({"name": "RAY_ADDRESS", "value": "auto"})

    found = " ".join(map(str, [custom_resources.errors(pool), custom_resources.errors(group)]))
    for message in (
        "'grace' was unexpected",
        "1 is not of type",
        "['RAY_ADDRESS'] is there 2 times",
    ):
        assert found.count(message) == 2

    del pool["spec"]["endpointPickerRef"]
    [older] = custom_resources.errors(pool)
    assert older == "v1.0.0 $.spec: 'endpointPickerRef' is a required property"


def test_definitions_have_their_source():
    """The page beside the file has the project, the file and the releases of each."""
    page = custom_resources.FILE.with_name("README.md").read_text()
    for repository, path, releases in custom_resources.SOURCES:
        assert f"| {repository} | `{path}` | {', '.join(releases)} |" in page
    stored = [tuple(each) for each in custom_resources.definitions().values()]
    assert stored == [releases for _, _, releases in custom_resources.SOURCES]


@pytest.mark.parametrize("name", [name for name in VALUE_SETS if name not in RAY])
def test_gateway_accepts_the_settings(name, tmp_path):
    """As the file of `--config`; with a keys file where the secret is mounted."""
    (tmp_path / "gateway.yaml").write_text(settings(name))
    loaded = load(config=tmp_path / "gateway.yaml")

    [container] = pod(name)["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    grpc_port = grpc_options.value(loaded.triton_option, "grpc-port")
    listening = {"http": loaded.port, "metrics": loaded.metrics_port, "grpc": grpc_port}
    assert ports == {name: port for name, port in listening.items() if port is not None}
    needed_s = loaded.drain_delay_s + loaded.graceful_shutdown_timeout_s + 10
    assert pod(name)["terminationGracePeriodSeconds"] > needed_s
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    assert loaded.keys_file is None or str(loaded.keys_file.parent) in mounts


def test_value_sets_cover_every_kind():
    kinds = {each["kind"] for name in VALUE_SETS for each in rendered(name)["documents"]}
    assert kinds == {
        *("ConfigMap", *WORKLOADS, "Service", "ServiceAccount", "PodDisruptionBudget"),
        *("HTTPRoute", "InferencePool", "NetworkPolicy", "ScaledObject", "ServiceMonitor"),
    }
    assert len(VALUE_SETS) >= 8


@pytest.mark.parametrize("name", VALUE_SETS)
def test_pods_are_restricted(name):
    """As Kubernetes' pod security standard `restricted` demands, with a root file system that
    cannot be written, and without a token of the cluster.
    """
    for spec in (template["spec"] for template in templates(name)):
        [container] = spec["containers"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert spec["enableServiceLinks"] is False
        # Ray's autoscaler asks the cluster for pods
        assert spec["automountServiceAccountToken"] is (container["name"] == "ray-head")


def test_only_the_leaders_of_groups_get_requests():
    """A worker has the release's label alone, by which it may be evicted only with its group's
    budget, and reaches the ports of the other pods.
    """
    leader, worker = (template["metadata"]["labels"] for template in templates("group"))
    release = {"app.kubernetes.io/instance": "chat"}
    selected = document("group", "Service")["spec"]["selector"]
    assert selected.items() <= leader.items()
    assert not selected.items() <= worker.items()
    assert release.items() <= worker.items()

    budget = document("group", "PodDisruptionBudget")["spec"]
    assert budget["selector"]["matchLabels"] == release
    policies = [each for each in rendered("group")["documents"] if each["kind"] == "NetworkPolicy"]
    of_workers = policies[1]["spec"]
    assert of_workers["podSelector"]["matchLabels"].items() <= worker.items()
    [source] = of_workers["ingress"][0]["from"]
    assert source["podSelector"]["matchLabels"] == release


def variables(template: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in template["spec"]["containers"][0]["env"]}


def test_settings_that_the_chart_takes_from_secrets_are_the_secret_ones():
    """A setting that becomes secret needs an entry in the chart."""
    template = (CHART / "templates" / "_helpers.tpl").read_text()
    listed = re.search(r'define "openai-frontend.secrets" -}}\n(.*?){{- end', template, re.DOTALL)

    assert listed is not None
    assert list(yaml.safe_load(listed[1])) == sorted(SECRETS)


def policies(values: dict[str, Any]) -> dict[str, Any]:
    """The network policies by the pods that they select."""
    return {
        json.dumps(each["spec"]["podSelector"]["matchLabels"]): each["spec"]["ingress"]
        for each in render(values)["documents"]
        if each["kind"] == "NetworkPolicy"
    }


def test_only_the_other_role_reaches_the_internal_ports():
    """By default: prefill servers and engines have no authentication there. Without roles, and if
    an operator says so, there are no policies.
    """
    values = yaml.safe_load(VALUE_SETS["roles"].read_text())
    assert "networkPolicy" not in values
    labels = [each["metadata"]["labels"] for each in templates("roles")]

    found = policies(values)

    assert len(found) == 2
    for own, other in (labels, reversed(labels)):
        [rules] = [
            rules
            for selector, rules in found.items()
            if json.loads(selector).items() <= own.items()
        ]
        open_ports = [
            port["port"] for rule in rules if "from" not in rule for port in rule["ports"]
        ]
        assert set(open_ports) <= {"http", "metrics"}
        sources = [
            peer["podSelector"]["matchLabels"] for rule in rules for peer in rule.get("from", [])
        ]
        assert sources
        assert all(each.items() <= other.items() for each in sources)
    assert policies({}) == {}
    assert policies(NO_POLICY) == {}


def test_clients_reach_the_decode_servers():
    """And those the prefill servers, with a key from a secret, at a service that selects them."""
    decode, prefill = templates("roles")
    labels = [each["metadata"]["labels"] for each in (decode, prefill)]
    services = {
        each["metadata"]["name"]: each["spec"]
        for each in rendered("roles")["documents"]
        if each["kind"] == "Service"
    }
    of_prefill = services.pop("chat-openai-frontend-prefill")
    [of_clients] = services.values()
    assert [of_clients["selector"].items() <= each.items() for each in labels] == [True, False]
    assert [of_prefill["selector"].items() <= each.items() for each in labels] == [False, True]
    # The name has the addresses of all pods, at the ports on which the pods themselves listen
    assert of_prefill["clusterIP"] == "None"
    [container] = prefill["spec"]["containers"]
    listening = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert {each["targetPort"]: each["port"] for each in of_prefill["ports"]}.items() <= (
        listening.items()
    )
    [peer] = [variables(decode)["OPENAI_FRONTEND_PREFILL_PEERS"]["value"]]
    assert peer == f"http://chat-openai-frontend-prefill:{of_prefill['ports'][0]['port']}"
    key = variables(decode)["OPENAI_FRONTEND_TRANSFER_KEY"]["valueFrom"]["secretKeyRef"]
    assert key == {"name": "transfer-key", "key": "key"}
    sizes = [
        each["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
        for each in (decode, prefill)
    ]
    assert sizes == [1, 2]
    spec = document("roles", "DisaggregatedSet")["spec"]
    assert [(each["name"], each["spec"]["replicas"]) for each in spec["roles"]] == [
        ("prefill", 1),
        ("decode", 2),
    ]


def test_gateways_accept_their_roles(tmp_path):
    """The variables of both roles are settings that fit together."""
    pytest.importorskip("openai_frontend.config.disaggregation")
    (tmp_path / "gateway.yaml").write_text(settings("roles"))
    for role, template in zip(("decode", "prefill"), templates("roles"), strict=True):
        given = {
            name: each.get("value", "sk-transfer")
            for name, each in variables(template).items()
            if name.startswith("OPENAI_FRONTEND_")
        }
        loaded: Any = load(config=tmp_path / "gateway.yaml", environment=given)
        assert loaded.role == role
        ports = {"port": loaded.port, "metrics_port": loaded.metrics_port}
        assert loaded.role_problem(keys=loaded.keys_file is not None, ports=ports) is None
        [container] = template["spec"]["containers"]
        listening = {each["name"]: each["containerPort"] for each in container["ports"]}
        assert listening.get("transfer", loaded.transfer_port) == loaded.transfer_port


def test_a_group_is_one_ray_cluster():
    """With a token; its pods may all take as long to end as the leader's answers."""
    leader, worker = (template["spec"] for template in templates("group"))
    variables = [
        {each["name"]: each for each in spec["containers"][0]["env"]} for spec in (leader, worker)
    ]
    for each in variables:
        assert each["RAY_AUTH_MODE"]["value"] == "token"
        assert each["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] == "ray-token"
    assert "--head" in leader["containers"][0]["args"][0]
    assert "$LWS_LEADER_ADDRESS:6379" in worker["containers"][0]["args"][0]
    grace_s = {spec["terminationGracePeriodSeconds"] for spec in (leader, worker)}
    assert grace_s == {15 + 600 + 10 + 30 + 10}
    target = document("group", "ScaledObject")["spec"]["scaleTargetRef"]
    scaled = document("group", "LeaderWorkerSet")
    assert target["kind"] == scaled["kind"]
    assert target["name"] == scaled["metadata"]["name"]
    assert target["apiVersion"] == scaled["apiVersion"]


def ray_arguments(name: str, folder: Path) -> RayArguments:
    (folder / "gateway.yaml").write_text(document(name, "RayService")["spec"]["serveConfigV2"])
    return ray_application.read(folder / "gateway.yaml")


@pytest.mark.parametrize(
    ("name", "routing", "prefill"), [("ray", "prefix", None), ("ray-roles", "session", 2)]
)
def test_ray_has_the_environment_of_the_gateways(name, routing, prefill, tmp_path):
    """The variables of each pod are those that `ray init` writes."""
    arguments = ray_arguments(name, tmp_path)
    settings = ray_application.settings_of(arguments)
    for template in templates(name):
        values = {key: each.get("value", "sk-1") for key, each in variables(template).items()}
        ray_application.check_environment(values, arguments, settings)
        given = {"max_replicas": arguments.replicas.max, "routing": routing}
        written = ray_init.variables({**given, "prefill_replicas": prefill})
        times = ("_HARD_STOP_AFTER_S", "_TIMEOUT_SERVER_S", "_TIMEOUT_CLIENT_S")  # of the settings
        secret = written.pop(ray_application.TRANSFER_KEY, None)
        assert (secret is None) == (prefill is None)
        same = {name: each for name, each in written.items() if not name.endswith(times)}
        assert same.items() <= values.items()
        assert written.keys() <= values.keys()


def test_ray_deploys_the_gateways(tmp_path):
    """The arguments are those that the Ray application accepts; the pods have what they name."""
    service = document("ray", "RayService")["spec"]
    arguments = ray_arguments("ray", tmp_path)
    settings = ray_application.settings_of(arguments)
    assert settings.request_timeout_s == 1200
    assert (arguments.replicas.min, arguments.replicas.max, arguments.num_gpus) == (1, 4, 1)

    for template in templates("ray"):
        [container] = template["spec"]["containers"]
        mounts = {each["mountPath"] for each in container["volumeMounts"]}
        assert {str(settings.keys_file.parent), *map(str, settings.model_repository)} <= mounts
        [port] = container["ports"]
        config = yaml.safe_load(service["serveConfigV2"])
        assert port["containerPort"] == config["http_options"]["port"]
        assert port["name"] == "serve"  # from which KubeRay takes the port of its service
    assert "evicted" in rendered("ray")["notes"]
    [workers] = service["rayClusterConfig"]["workerGroupSpecs"]
    assert workers["maxReplicas"] == 2 * arguments.replicas.max  # arguments.surge
    assert float(workers["rayStartParams"]["num-cpus"]) == arguments.num_cpus


@pytest.mark.parametrize("name", RAY)
def test_ray_needs_no_wget_in_the_image(name):
    """KubeRay adds probes that run it, but only to a container without its own. These ask Ray's
    agent, and of a worker, whether its proxy can answer clients.
    """
    proxy = {"path": "/-/healthz", "port": "serve"}
    agent = {"path": "/api/healthz", "port": 52365}
    for container in (template["spec"]["containers"][0] for template in templates(name)):
        ready = agent if container["name"] == "ray-head" else proxy
        assert container["readinessProbe"]["httpGet"] == ready
        assert container["livenessProbe"]["httpGet"] == agent
        assert "serve" in [each["name"] for each in container["ports"]]


def test_clients_reach_the_ray_cluster_in_use():
    """By KubeRay's service, which an update directs to the new cluster: the labels of pods do not
    tell one cluster from the other.
    """
    assert "Service" not in {each["kind"] for each in rendered("ray")["documents"]}
    service = document("ray", "RayService")["spec"]["serveService"]
    name = service["metadata"]["name"]
    assert name == f"{document('ray', 'RayService')['metadata']['name']}-serve-svc"
    assert service["spec"] == {"type": "ClusterIP"}
    config = yaml.safe_load(document("ray", "RayService")["spec"]["serveConfigV2"])
    [rule] = document("ray", "HTTPRoute")["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": name, "port": config["http_options"]["port"]}]
    assert f"service/{name} 9000:9000" in rendered("ray")["notes"]


def test_the_old_ray_cluster_completes_its_answers(tmp_path):
    """It stays for as long as Ray waits for a replica of an update."""
    settings = ray_application.settings_of(ray_arguments("ray", tmp_path))
    options = ray_application.deployment_options(ray_arguments("ray", tmp_path), settings)
    spec = document("ray", "RayService")["spec"]
    assert spec["rayClusterDeletionDelaySeconds"] == options["graceful_shutdown_timeout_s"] == 645
    assert "deploymentUnhealthySecondThreshold" not in spec


BUDGETS = [
    {"rayService": {"enabled": True}, "replicas": replicas, "podDisruptionBudget": budget}
    for replicas, budget in [
        (3, {}),
        (3, {"maxUnavailable": 2}),
        (0, {}),
        (1, {"maxUnavailable": 3}),
    ]
]


def test_pods_of_ray_can_be_evicted():
    """Kubernetes does not know how many pods a RayCluster has, so the budget says how many of the
    head and the least replicas must stay. If that is none, there is no budget.
    """
    for name, stay in (("ray", 1), ("ray-roles", 3)):
        budget = document(name, "PodDisruptionBudget")["spec"]
        assert "maxUnavailable" not in budget
        assert budget["minAvailable"] == stay
        labels = budget["selector"]["matchLabels"].items()
        assert all(labels <= each["metadata"]["labels"].items() for each in templates(name))
    budgets = [
        [each["spec"] for each in render(values)["documents"] if "Disruption" in each["kind"]]
        for values in BUDGETS
    ]
    assert [[each["minAvailable"] for each in found] for found in budgets] == [[3], [2], [], []]


LONG_NAME = "r" * 53  # the longest that Helm allows
NAMED: list[dict[str, Any]] = [
    {},
    {"rayService": {"enabled": True}},
    {
        "roles": {"prefill": {}, "decode": {}},
        "keys": {"existingSecret": "api-keys"},
        "transferKey": {"existingSecret": "transfer-key"},
    },
]


def test_names_are_as_long_as_they_may_be():
    """63 characters of a service, with `-prefill` where there are roles; 47 of a RayService."""
    lengths = [
        sorted(
            len(each["metadata"]["name"])
            for each in render(values, LONG_NAME)["documents"]
            if each["kind"] in ("Service", "RayService")
        )
        for values in NAMED
    ]
    assert lengths == [[63], [47], [55, 63]]


def test_ray_deploys_roles(tmp_path, capsys):
    """Each kind of replica has pods of its own, which have what it asks for; `check` accepts the
    files of a pod, once the models are there.
    """
    arguments = ray_arguments("ray-roles", tmp_path)
    prefill = arguments.prefill
    assert prefill is not None
    assert (arguments.replicas.min, arguments.replicas.max, prefill.replicas) == (1, 3, 2)
    assert (arguments.num_gpus, prefill.num_gpus) == (1, 2)

    cluster = document("ray-roles", "RayService")["spec"]["rayClusterConfig"]
    groups = {each["groupName"]: each for each in cluster["workerGroupSpecs"]}
    for name, replica in (("decode", arguments), ("prefill", prefill)):
        [container] = groups[name]["template"]["spec"]["containers"]
        assert replica.num_gpus == container["resources"]["limits"]["nvidia.com/gpu"]
        assert replica.num_cpus == float(groups[name]["rayStartParams"]["num-cpus"])
        offered = {key: float(each) for key, each in groups[name]["resources"].items()}
        assert replica.resources == offered == {name: 1}
    counts = [
        (each["minReplicas"], each["replicas"], each["maxReplicas"]) for each in groups.values()
    ]
    assert counts == [(1, 1, 2 * 3), (2, 2, 2 * 2)]  # arguments.surge

    [head, *_] = templates("ray-roles")
    file, model = tmp_path / "gateway.yaml", ROOT / "model_repository"
    file.write_text(file.read_text().replace("/models", str(model)))
    values = {name: each.get("value", "sk-1") for name, each in variables(head).items()}
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in values.items()]
    (tmp_path / "ray.env").write_text("".join(lines))
    assert main(["check", str(file)]) == 0
    assert "demo" in capsys.readouterr().out
    (tmp_path / "ray.env").write_text("".join(each for each in lines if "TRANSFER" not in each))
    assert main(["check", str(file)]) == 2


def test_grpc_is_served_only_if_a_port_is_set():
    """The service's port leads to the one at which the gateway listens, with its other options."""
    [container] = pod("one-node")["containers"]
    [listening] = [each for each in container["ports"] if each["name"] == "grpc"]
    options_of_grpc = yaml.safe_load(settings("one-node"))["triton_option"]
    assert options_of_grpc == {
        "grpc-port": listening["containerPort"],
        "grpc-max-connection-age": 600000,
    }
    ports = document("one-node", "Service")["spec"]["ports"]
    [port] = [each["port"] for each in ports if each["targetPort"] == "grpc"]
    assert port == 8001
    for text in (settings("cpu"), json.dumps([pod("cpu"), document("cpu", "Service")])):
        assert "grpc" not in text


def test_grpc_can_be_reached_like_http():
    """Where a network policy limits who reaches the API, it limits the same for gRPC."""
    [rules] = policies(GRPC).values()
    assert rules[0] == {"ports": [{"port": "http"}, {"port": "grpc"}], "from": [PEER]}


def test_grace_period_follows_the_settings():
    """The engines may take `exit_timeout_s` (30), and 10 s are left."""
    assert pod("cpu")["terminationGracePeriodSeconds"] == 15 + 600 + 10 + 30 + 10
    assert pod("keys")["terminationGracePeriodSeconds"] == 15 + 1200 + 10 + 60 + 10
    assert pod("one-node")["terminationGracePeriodSeconds"] == 200


CHANGED = [{"settings": {"max_concurrent_requests": slots}} for slots in (8, 9)]


def test_a_changed_setting_replaces_the_pods():
    pods = [
        each["spec"]["template"]
        for values in CHANGED
        for each in render(values)["documents"]
        if each["kind"] == "Deployment"
    ]
    first, second = (each["metadata"]["annotations"]["checksum/settings"] for each in pods)
    assert first != second


SECRETS = [each.name for each in options() if each.secret]
KEYS = {"existingSecret": "api-keys"}
ROLES = {"prefill": {"replicas": 1}, "decode": {"replicas": 1}}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "short grace period": (
        {"terminationGracePeriodSeconds": 60},
        "terminationGracePeriodSeconds: 60 would cut answers; it must exceed .* = 625",
    ),
    "longer answers than the grace period": (
        {
            "terminationGracePeriodSeconds": 700,
            "settings": {"graceful_shutdown_timeout_s": 900},
        },
        "terminationGracePeriodSeconds: 700 would cut answers; .* = 925",
    ),
    "a setting of the chart's": (
        {"settings": {"port": 8000}},
        "settings.port: the chart sets it; see service.port",
    ),
    "TLS": ({"settings": {"tls_certificate": "/tls/tls.crt"}}, "settings.tls_certificate, .*HTTP"),
    "an unknown value": ({"replica": 3}, "replica.*not allowed"),
    "no pod to replace": ({"maxSurge": 0}, "maxSurge, maxUnavailable: both are 0"),
    "more least than most replicas": (
        {"autoscaling": {"enabled": True, "minReplicas": 5}, "serviceMonitor": {"enabled": True}},
        "autoscaling.minReplicas: it must not exceed",
    ),
    "autoscaling without metrics": (
        {"autoscaling": {"enabled": True}},
        "autoscaling.enabled: it needs the metrics",
    ),
    "no share of the pods": (
        {"maxSurge": "0%", "maxUnavailable": "0%"},
        "maxSurge, maxUnavailable: both are 0",
    ),
    "a key that is not secret": ({"settings": {"api_key": ["sk-1"]}}, "use keys.existingSecret"),
    **{
        f"the secret {name}": ({"settings": {name: "x"}}, f"settings.{name}: a ConfigMap is not")
        for name in SECRETS
    },
    "a secret as plain text": (
        {"env": [{"name": "OPENAI_FRONTEND_RATE_LIMIT_STORAGE", "value": "redis://:p@h"}]},
        "env: the value of OPENAI_FRONTEND_RATE_LIMIT_STORAGE is secret",
    ),
    "private health": ({"settings": {"public_health": False}}, "settings.public_health: probes"),
    "names of hosts": (
        {"settings": {"allowed_hosts": ["a"]}, "serviceMonitor": {"enabled": True}},
        "settings.allowed_hosts: Prometheus",
    ),
    "a setting in the environment": (
        {"env": [{"name": "OPENAI_FRONTEND_PORT", "value": "8000"}]},
        "env: OPENAI_FRONTEND_PORT would win over the settings file",
    ),
    "a key in the environment": (
        {"env": [{"name": "OPENAI_FRONTEND_API_KEY"}], "serviceMonitor": {"enabled": True}},
        "serviceMonitor.credentials: with API keys",
    ),
    "a pool without a picker": (
        {"inferencePool": {"enabled": True}},
        "inferencePool.endpointPicker.name: .* needed",
    ),
    "a picker without a key": (
        {"keys": KEYS, "inferencePool": {"enabled": True, "endpointPicker": {"name": "epp"}}},
        "settings.public_metrics: with API keys, the endpoint picker",
    ),
    "Prometheus without a key": (
        {"keys": KEYS, "serviceMonitor": {"enabled": True}},
        "serviceMonitor.credentials: with API keys",
    ),
    "a group without a token": (
        {"group": {"size": 2}},
        "group.rayToken.existingSecret: without a token, everyone in the cluster could run code",
    ),
    "a group in Ray": (
        {"group": {"size": 2}, "rayService": {"enabled": True}},
        "group.size: cannot be combined with rayService",
    ),
    "a pool in Ray": (
        {"inferencePool": {"enabled": True}, "rayService": {"enabled": True}},
        "inferencePool.enabled: cannot be combined with rayService",
    ),
    "a port of Ray's service": (
        {"service": {"port": 8080}, "rayService": {"enabled": True}},
        "service.port: it is 9000 with rayService",
    ),
    "gRPC in Ray": (
        {"service": {"grpcPort": 8001}, "rayService": {"enabled": True}},
        "service.grpcPort: cannot be combined with rayService",
    ),
    "gRPC at the port of HTTP": (
        {"service": {"grpcPort": 80}},
        "service.grpcPort: it must differ from service.port",
    ),
    "gRPC beside a list of options": (
        {"service": {"grpcPort": 8001}, "settings": {"triton_option": ["log-verbose=1"]}},
        "settings.triton_option: with service.grpcPort, write a map",
    ),
    "the port of gRPC in the settings": (
        {"settings": {"triton_option": {"grpc-port": 9}}},
        "settings.triton_option: the chart sets grpc-port; see service.grpcPort",
    ),
    "a share of Ray's pods": (
        {"podDisruptionBudget": {"maxUnavailable": "25%"}, "rayService": {"enabled": True}},
        "podDisruptionBudget.maxUnavailable: it must be a number with rayService",
    ),
    "one role": (
        {"roles": {"prefill": {"replicas": 1}}, "keys": KEYS},
        "roles: prefill and decode are both needed",
    ),
    "roles without keys": (
        {"roles": ROLES},
        "keys.existingSecret: prefill servers need a keys file",
    ),
    "roles without a key for transfers": (
        {"roles": ROLES, "keys": KEYS},
        "transferKey.existingSecret: decode servers need an API key",
    ),
    "roles that scale": (
        {"roles": ROLES, "autoscaling": {"enabled": True}, "serviceMonitor": {"enabled": True}},
        "roles: cannot be combined with group.size, nor with autoscaling unless rayService",
    ),
    "roles in Ray without a key": (
        {"roles": ROLES, "rayService": {"enabled": True}},
        "transferKey.existingSecret: decode servers need an API key",
    ),
    "one role in Ray": (
        {"roles": {"decode": {}}, "rayService": {"enabled": True}},
        "roles: prefill and decode are both needed",
    ),
    "a route without a gateway": ({"httpRoute": {"enabled": True}}, "httpRoute.parentRefs: name"),
}


BY_SCHEMA: dict[str, dict[str, Any]] = {
    "$": {"replica": 3},
    "$.replicas": {"replicas": "three"},
    "$.settings.drain_delay_s": {"settings": {"drain_delay_s": 1.5}},
    "$.settings.public_metrics": {"settings": {"public_metrics": "false"}},
    "$.autoscaling.minReplicas": {"autoscaling": {"minReplicas": 0}},
    "$.env[0].value": {"env": [{"name": "X", "value": 8}]},
    "$.serviceMonitor.credentials": {"serviceMonitor": {"credentials": {"name": "a"}}},
    "$.service.port": {"service": {"port": 9002}},
    "$.service.grpcPort": {"service": {"grpcPort": -1}},
    "$.roles": {"roles": {"encode": {}}},
    "$.group.size": {"group": {"size": 0}},
}


def test_schema_refuses_wrong_values():
    """Unknown names, other types, and numbers out of range; Helm applies it before it renders, as
    the unknown value below shows.
    """
    schema = json.loads((CHART / "values.schema.json").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())

    def merged(name: str, value: Any) -> Any:
        own = defaults.get(name)
        return {**own, **value} if isinstance(own, dict) and isinstance(value, dict) else value

    for path, values in BY_SCHEMA.items():
        given = defaults | {name: merged(name, value) for name, value in values.items()}
        errors = jsonschema.Draft7Validator(schema).iter_errors(given)
        assert [each.json_path for each in errors] == [path]


@pytest.mark.parametrize(("values", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_values_are_refused(values, message):
    """The message names the value, and says what to do."""
    assert re.search(message, render(values)["refused"])


@pytest.mark.slow
def test_gateway_has_what_the_manifests_name(replicas):
    """The metrics of the autoscaler and of the endpoint picker, and the paths of the probes."""
    gateway = next(iter(replicas.running.values()))
    exposed = httpx.get(f"{gateway.url}/metrics").text
    [trigger] = document("autoscaling", "ScaledObject")["spec"]["triggers"]
    picker = (CHART / "files" / "endpoint-picker.yaml").read_text()
    named = set(re.findall(r"openai_frontend_\w+", trigger["metadata"]["query"] + picker))
    of_vllm = {LOAD_KV_CACHE_BLOCKS.name, LOAD_KV_CACHE_BLOCK_SIZE.name}
    assert named > of_vllm
    for metric in named - of_vllm:
        assert re.search(rf"^{metric} [0-9.e+]+$", exposed, re.MULTILINE), metric

    engines = yaml.safe_load(picker)["plugins"][0]["parameters"]["engineConfigs"]
    template = document("pool", "Deployment")["spec"]["template"]
    assert template["metadata"]["labels"]["llm-d.ai/engine-type"] == engines[0]["name"]
    [container] = template["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert document("pool", "InferencePool")["spec"]["targetPorts"] == [{"number": ports["http"]}]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        path = container[probe]["httpGet"]["path"]
        assert httpx.get(f"{gateway.url}{path}").status_code == 200
