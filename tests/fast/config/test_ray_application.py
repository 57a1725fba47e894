"""What gateway.yaml may contain, and what follows from it. Ray itself is not needed."""

import pytest

from openai_frontend.config import ray_application
from openai_frontend.config.loader import InvalidSettings
from openai_frontend.config.ray_application import (
    arguments_of,
    check_environment,
    deployment_options,
    prefill_options,
    settings_of,
)

ENVIRONMENT = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3660",
    "RAY_SERVE_HAPROXY_RETRIES": "3",
}


def options(**values):
    arguments = arguments_of({"model": "acme/tiny", **values})
    return deployment_options(arguments, settings_of(arguments))


def test_fixed_replicas():
    """Equal bounds are a number. The gateway's own queue limits the requests of a replica."""
    deployment = options(replicas={"min": 3, "max": 3}, num_gpus=2)

    assert deployment["num_replicas"] == 3
    assert "autoscaling_config" not in deployment
    assert deployment["ray_actor_options"] == {"num_cpus": 1, "num_gpus": 2, "resources": {}}
    assert deployment["max_ongoing_requests"] > 100_000


def test_autoscaling_aims_at_a_share_of_the_limit():
    """Ray adds a replica before the others have as many requests as they may run."""
    replicas = {"min": 0, "max": 4, "downscale_delay_s": 60}
    deployment = options(replicas=replicas, settings={"max_concurrent_requests": 100})

    assert deployment["autoscaling_config"] == {
        "min_replicas": 0,
        "max_replicas": 4,
        "target_ongoing_requests": 70,
        "upscale_delay_s": 10,
        "downscale_delay_s": 60,
    }


def test_ray_waits_longer_than_the_gateway():
    """A replica may deregister, finish its requests and stop its core before Ray kills it."""
    deployment = options(settings={"graceful_shutdown_timeout_s": 600})

    assert deployment["graceful_shutdown_timeout_s"] == 30 + 600 + 15


def test_update_without_free_resources():
    """Without `surge`, an old replica stops before a new one starts."""
    assert options()["max_surge_percent"] == 100
    assert "max_surge_percent" not in options(surge=False)


def test_engine_that_spans_machines():
    """The first bundle is the replica's own; each worker of the engine has one of the others."""
    own = {"num_cpus": 4, "resources": {"node-a": 1}}
    deployment = options(bundles=[{"GPU": 1}, {"GPU": 1}], placement="SPREAD", **own)

    first = {"CPU": 4, "GPU": 0, "node-a": 1}
    assert deployment["placement_group_bundles"] == [first, {"GPU": 1}, {"GPU": 1}]
    assert deployment["placement_group_strategy"] == "SPREAD"


def test_kinds_of_replicas_have_nodes_of_their_own():
    """By resources that only those nodes have."""
    prefill = {"num_gpus": 2, "resources": {"prefill": 1}}
    arguments = arguments_of({"model": "m", "resources": {"decode": 1}, "prefill": prefill})
    settings = settings_of(arguments)

    decode = deployment_options(arguments, settings)["ray_actor_options"]
    assert decode == {"num_cpus": 1, "num_gpus": 0, "resources": {"decode": 1}}
    assert arguments.prefill is not None
    placed = prefill_options(arguments, arguments.prefill, settings)["ray_actor_options"]
    assert placed == {"num_cpus": 1, "num_gpus": 2, "resources": {"prefill": 1}}


def test_queues_are_short():
    """HAProxy sends a rejected request to another replica."""
    assert settings_of(arguments_of({"model": "m"})).behind_router
    assert not settings_of(
        arguments_of({"model": "m", "settings": {"behind_router": False}})
    ).behind_router


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "args: needs `model`"),
        ({"model": "m", "replica": 3}, "args.replica: "),
        ({"model": "m", "replicas": {"min": 2, "max": 1}}, "args.replicas: "),
        ({"model": "m", "num_gpus": -1}, "args.num_gpus: "),
        ({"model": "m", "resources": {"GPU": 1}}, "args.resources: GPU: set num_gpus instead"),
        ({"model": "m", "resources": {"decode": 0}}, "args.resources.decode: "),
        ({"model": "m", "settings": {"prot": 1}}, "args.settings: unknown setting 'prot'"),
        ({"model": "m", "settings": {"port": 1}}, "args.settings: port: Ray decides"),
        (
            {"model": "m", "settings": {"role": "decode"}},
            "args.settings: role: set `prefill` beside `settings` instead",
        ),
        ({"model": "m", "prefill": {"replicas": 0}}, "args.prefill.replicas: "),
        (
            {"model": "m", "bundles": [{"GPU": 1}, {"GPU": 8}]},
            "args: bundles.1: GPU must be at most 1, but is 8: write a bundle for each worker",
        ),
        (
            {"model": "m", "bundles": [{"GPU": 1}], "num_gpus": 1},
            "args: num_gpus: must be 0 with bundles, but is 1",
        ),
        ({"model": "m", "settings": {"queue_timeout_s": -1}}, "args.settings: queue_timeout_s: "),
        (
            {"model": "m", "settings": {"model_repository": ["r"]}},
            "args.settings: model_repository: cannot be combined",
        ),
    ],
)
def test_wrong_arguments_are_named(values, message):
    """A wrong value is refused in one line that begins with its place in the file."""
    with pytest.raises(InvalidSettings) as raised:
        settings_of(arguments_of(values))

    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_environment_of_ray(name):
    """A variable that Ray must have at its start is named, and where to set it."""
    arguments = arguments_of({"model": "m"})
    settings = settings_of(arguments)
    check_environment(ENVIRONMENT, arguments, settings)

    others = {key: ENVIRONMENT[key] for key in ENVIRONMENT if key != name}
    with pytest.raises(InvalidSettings, match=f"{name}: .*ray.env"):
        check_environment(others, arguments, settings)


def test_variable_that_is_no_number():
    arguments = arguments_of({"model": "m"})
    variables = {**ENVIRONMENT, "RAY_SERVE_HAPROXY_RETRIES": "many"}
    with pytest.raises(InvalidSettings, match="RETRIES: must be a number"):
        check_environment(variables, arguments, settings_of(arguments))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("applications: [", "line 2"),
        ("applications: []", "needs one application"),
        ("applications: [{import_path: other:app}]", "but has 0"),
        ("- 1", "needs one application"),
        ("applications: [{import_path: 'openai_frontend.ray:app', args: {x: 1}}]", "args.x: "),
    ],
)
def test_wrong_files_are_named(tmp_path, text, message):
    """The message begins with the path of the file."""
    file = tmp_path / "gateway.yaml"
    file.write_text(text)

    with pytest.raises(InvalidSettings) as raised:
        ray_application.read(file)
    assert str(raised.value).startswith(f"{file}: ")
    assert message in str(raised.value)
