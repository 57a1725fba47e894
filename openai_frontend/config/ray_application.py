"""The arguments of the Ray Serve application in gateway.yaml, and what follows from them.

Does not import Ray, so `check` can read the file where Ray is not installed.
"""

import hashlib
import math
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from openai_frontend.config import strict_yaml
from openai_frontend.config.loader import InvalidSettings, from_values, read_yaml
from openai_frontend.config.settings import Settings
from openai_frontend.config.types import ApiKey

IMPORT_PATH = "openai_frontend.ray:app"
ENVIRONMENT_FILE = "ray.env"
# Ray's own limit of requests at a replica, beyond which it would answer without OpenAI's envelope.
# The gateway's limits are `max_concurrent_requests` and `max_queue_size`.
_NO_LIMIT = 1_000_000
# A replica stays reachable for this long after Ray has removed it from HAProxy, and then
# finishes its requests (the default of RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S).
_DEREGISTRATION_S = 30
_STOP_CORE_S = 15
# Share of `max_concurrent_requests` from which Ray adds a replica
_TARGET_LOAD = 0.7
# Ray decides them for each replica
_RAYS_OWN = (
    "host", "port", "unix_socket", "metrics_port", "replica_name", "tls_certificate", "tls_key",
    "tls_client_ca",
)  # fmt: skip
_HARD_STOP = "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"
_HARD_STOP_S = 120.0  # Ray's default
_RETRIES = "RAY_SERVE_HAPROXY_RETRIES"
_RETRIES_DEFAULT = 2  # Ray's
# With which decode replicas ask prefill replicas: a secret, so it is not in gateway.yaml
TRANSFER_KEY = "OPENAI_FRONTEND_TRANSFER_KEY"
# `prefill` decides them
_OF_ROLES = ("role", "transfer_host", "transfer_port", "prefill_peers", "transfer_key")
_SOURCE = "Source ray.env before `ray start`, on every node."


def _with_names_of_their_own(resources: dict[str, float]) -> dict[str, float]:
    for name, own in (("CPU", "num_cpus"), ("GPU", "num_gpus")):
        if name in resources:
            raise ValueError(f"{name}: set {own} instead")
    return resources


# Nodes have them by `ray start --resources`, so they decide where a replica runs
CustomResources = Annotated[
    dict[str, Annotated[float, Field(gt=0)]], AfterValidator(_with_names_of_their_own)
]


class Replicas(BaseModel):
    """Ray adds and removes replicas by the requests that run and wait in them."""

    model_config = ConfigDict(extra="forbid")

    min: int = Field(default=1, ge=0)
    max: int = Field(default=1, ge=1)
    # How long the load must ask for another number before Ray changes it. A replica is added sooner
    # than by Ray's default of 30 s, because requests wait, and removed late, because it takes long
    # to start.
    upscale_delay_s: float = Field(default=10, ge=0)
    downscale_delay_s: float = Field(default=600, ge=0)

    @model_validator(mode="after")
    def _in_order(self) -> "Replicas":
        if self.max < self.min:
            raise ValueError("max must be at least min")
        return self


class PrefillReplicas(BaseModel):
    """Replicas that compute prompts for the others, which then generate the answers."""

    model_config = ConfigDict(extra="forbid")

    replicas: int = Field(default=1, ge=1)  # Ray sees none of their requests, so it cannot scale
    num_cpus: float = Field(default=1, ge=0)
    num_gpus: float = Field(default=0, ge=0)
    resources: CustomResources = {}


class RayArguments(BaseModel):
    """`args` of the application."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None  # as in `openai-frontend serve MODEL`
    settings: dict[str, Any] = {}  # under the names of the settings file
    replicas: Replicas = Replicas()
    num_cpus: float = Field(default=1, ge=0)  # that Ray reserves for a replica
    num_gpus: float = Field(default=0, ge=0)
    resources: CustomResources = {}
    # Resources of each worker of an engine that spans machines, beside those of the replica
    bundles: list[dict[str, float]] = []
    placement: Literal["PACK", "STRICT_PACK", "SPREAD", "STRICT_SPREAD"] = "PACK"
    # Replicas of an update start before the old ones stop, which needs the resources of both.
    surge: bool = True
    prefill: PrefillReplicas | None = None  # None: each replica computes its prompts itself

    @model_validator(mode="after")
    def _one_worker_in_a_bundle(self) -> "RayArguments":
        """vLLM refuses a bundle with two GPUs, and waits forever for one that the replica has."""
        for number, bundle in enumerate(self.bundles):
            if bundle.get("GPU", 0) > 1:
                raise ValueError(
                    f"bundles.{number}: GPU must be at most 1, but is {bundle['GPU']:g}: write a "
                    "bundle for each worker of the engine"
                )
        if self.bundles and self.num_gpus:
            raise ValueError(
                f"num_gpus: must be 0 with bundles, but is {self.num_gpus:g}: the workers of the "
                "engine have the GPUs"
            )
        return self


def read(path: Path) -> RayArguments:
    """The arguments in a file for `serve deploy`. Raises InvalidSettings."""
    document = read_yaml(path)
    applications = document.get("applications") if isinstance(document, dict) else None
    ours = [
        application
        for application in (applications if isinstance(applications, list) else [])
        if isinstance(application, dict) and application.get("import_path") == IMPORT_PATH
    ]
    if len(ours) != 1:
        raise InvalidSettings(
            f"{path}: needs one application with the import_path {IMPORT_PATH}, but has {len(ours)}"
        )
    try:
        return arguments_of(ours[0].get("args") or {})
    except InvalidSettings as error:
        raise InvalidSettings(f"{path}: {error}") from None


def arguments_of(values: Mapping[str, Any]) -> RayArguments:
    """Raises InvalidSettings."""
    try:
        return RayArguments.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, ("args", *problem["loc"])))
        raise InvalidSettings(f"{where}: {strict_yaml.describe_problem(problem)}") from None


def settings_of(arguments: RayArguments, parsers: Collection[str] | None = None) -> Settings:
    """The settings of a replica. HAProxy sends a request that one rejects to another, so
    `behind_router` is on unless it is set. Raises InvalidSettings.
    """
    for name in _RAYS_OWN:
        if name in arguments.settings:
            raise InvalidSettings(f"args.settings: {name}: Ray decides it for each replica")
    for name in _OF_ROLES:
        if name in arguments.settings:
            raise InvalidSettings(
                f"args.settings: {name}: set `prefill` beside `settings` instead (docs/ray.md)"
            )
    if arguments.model is None and "model_repository" not in arguments.settings:
        raise InvalidSettings("args: needs `model`, or `model_repository` below `settings`")
    if arguments.model is not None and "model_repository" in arguments.settings:
        raise InvalidSettings("args.settings: model_repository: cannot be combined with `model`")
    values = {"behind_router": True, **arguments.settings}
    return from_values(values, source="args.settings", parsers=parsers)


def prefill_settings(settings: Settings, key: str) -> Settings:
    """Settings of a prefill replica. Only decode replicas reach it, with this key."""
    own = {"api_key": [ApiKey(hashlib.sha256(key.encode()).hexdigest())]}
    others = {"keys_file": None, "jwks": None, "rate_limit_storage": None}
    return settings.model_copy(update={"role": "prefill", **own, **others})


def decode_settings(settings: Settings, key: str) -> Settings:
    """Settings of a decode replica. Ray provides the addresses of the prefill replicas."""
    return settings.model_copy(update={"role": "decode", "transfer_key": key})


def retries(max_replicas: int) -> int:
    """How often HAProxy tries a request that was not started: each replica of an update, old and
    new, and then Ray's own proxy.
    """
    return 2 * max_replicas + 1


def environment_of(path: Path) -> dict[str, str]:
    """The variables in a file for the shell. Raises InvalidSettings and OSError."""
    try:
        words = shlex.split(path.read_text(), comments=True)
    except ValueError as error:
        raise InvalidSettings(f"{path}: {error}") from None
    return dict(word.split("=", 1) for word in words if "=" in word)


def check_environment(
    environment: Mapping[str, str], arguments: RayArguments, settings: Settings
) -> None:
    """Ray reads these variables in each of its processes, so they must be set where it starts.

    Raises InvalidSettings.
    """
    for name, value, why in (
        ("RAY_SERVE_ENABLE_HA_PROXY", "1", "Otherwise each token crosses Ray's Python proxy"),
        ("RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD", "0", "Otherwise each token changes threads"),
    ):
        if environment.get(name) != value:
            raise InvalidSettings(f"{name}: must be {value}. {why}. {_SOURCE}")
    if _number(environment, _HARD_STOP, _HARD_STOP_S) < settings.request_timeout_s:
        raise InvalidSettings(
            f"{_HARD_STOP}: must be at least request_timeout_s ({settings.request_timeout_s:g}), "
            f"or a change of replicas cuts longer streams. {_SOURCE}"
        )
    if arguments.prefill is not None and not environment.get(TRANSFER_KEY):
        raise InvalidSettings(
            f"{TRANSFER_KEY}: `prefill` needs it. Write ray.env again (`ray init "
            f"--prefill-replicas {arguments.prefill.replicas} --force`). {_SOURCE}"
        )
    least, tries = retries(arguments.replicas.max), _number(environment, _RETRIES, _RETRIES_DEFAULT)
    if tries < least:
        raise InvalidSettings(
            f"{_RETRIES}: {tries:g} is too few for replicas.max {arguments.replicas.max}, with "
            f"which an update needs {least}. Write ray.env again (`ray init --max-replicas "
            f"{arguments.replicas.max} --force`), or change it there. {_SOURCE}"
        )


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    try:
        return float(environment.get(name, default))
    except ValueError:
        raise InvalidSettings(f"{name}: must be a number. {_SOURCE}") from None


def deployment_options(arguments: RayArguments, settings: Settings) -> dict[str, Any]:
    """The arguments of `ray.serve.deployment`."""
    options = _placed(arguments, arguments, settings)
    if arguments.bundles:
        own = {"CPU": arguments.num_cpus, "GPU": arguments.num_gpus, **arguments.resources}
        options["placement_group_bundles"] = [own, *arguments.bundles]
        options["placement_group_strategy"] = arguments.placement
    replicas = arguments.replicas
    if replicas.min == replicas.max:
        return {**options, "num_replicas": replicas.min}
    scaling = {
        "min_replicas": replicas.min,
        "max_replicas": replicas.max,
        "target_ongoing_requests": math.ceil(_TARGET_LOAD * settings.max_concurrent_requests),
        "upscale_delay_s": replicas.upscale_delay_s,
        "downscale_delay_s": replicas.downscale_delay_s,
    }
    return {**options, "autoscaling_config": scaling}


def prefill_options(
    arguments: RayArguments, prefill: PrefillReplicas, settings: Settings
) -> dict[str, Any]:
    """The arguments of `ray.serve.deployment` for the replicas that compute prompts."""
    return {**_placed(arguments, prefill, settings), "num_replicas": prefill.replicas}


def _placed(
    arguments: RayArguments, replica: RayArguments | PrefillReplicas, settings: Settings
) -> dict[str, Any]:
    grace_s = _DEREGISTRATION_S + settings.graceful_shutdown_timeout_s + _STOP_CORE_S
    options: dict[str, Any] = {
        # The gateway's access log has more fields. Ray would make a record of each request all the
        # same, and drop it.
        "logging_config": {"enable_access_log": False, "log_level": "WARNING"},
        "max_ongoing_requests": _NO_LIMIT,
        "graceful_shutdown_timeout_s": grace_s,
        "ray_actor_options": replica.model_dump(include={"num_cpus", "num_gpus", "resources"}),
    }
    return {**options, "max_surge_percent": 100} if arguments.surge else options
