"""docker-compose.yml: valid by the specification's schema, and safe by default."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from openai_frontend.config import grpc_options
from openai_frontend.config.loader import load
from openai_frontend.config.settings import Settings
from scripts.check_images import IMAGES
from tests.deploy.dockerfile import stages

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]


def schema_errors(document: object) -> list[str]:
    schema = json.loads((ROOT / "tests/data/compose-spec/compose-spec.json").read_text())
    return [
        error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(document)
    ]


def test_file_follows_the_compose_specification() -> None:
    """The specification's schema reports no error."""

    assert schema_errors(COMPOSE) == []


def test_grpc_is_published_by_the_second_file_only() -> None:
    """It sets the port for every service and publishes it to this machine; the first does not."""

    path = ROOT / "deploy" / "docker" / "compose.grpc.yml"
    grpc = yaml.safe_load(path.read_text())

    assert schema_errors(grpc) == []
    environment = {"OPENAI_FRONTEND_TRITON_OPTION": "grpc-port=8001"}
    added = {
        "environment": environment,
        "ports": ["127.0.0.1:8001:8001"],
    }
    assert grpc["services"] == dict.fromkeys(SERVICES, added)
    settings = load(environment=environment)
    assert grpc_options.value(settings.triton_option, "grpc-port") == 8001


def test_schema_finds_mistakes() -> None:
    """It reports a misspelt key, so the test above can fail."""

    assert schema_errors({"services": {"cpu": {"prots": ["9000:9000"]}}}) != []


def test_services_need_a_profile() -> None:
    """Without `--profile`, no service starts."""

    profiles = {name: service["profiles"] for name, service in SERVICES.items()}
    assert profiles == {name: [name] for name in IMAGES}


@pytest.mark.parametrize("service", SERVICES.values(), ids=list(SERVICES))
class TestEachService:
    """Every service."""

    def test_port_is_published_on_the_loopback_interface(self, service: dict[str, Any]) -> None:
        """Other hosts cannot reach a gateway without keys."""

        assert service["ports"] == ["127.0.0.1:9000:9000"]

    def test_health_check_asks_for_readiness(self, service: dict[str, Any]) -> None:
        """It asks the gateway whether its models can serve."""

        assert "http://127.0.0.1:9000/health/ready" in service["healthcheck"]["test"][-1]

    def test_health_check_fails_on_an_error(self, service: dict[str, Any]) -> None:
        """It is Python that compiles; urlopen raises for a 503."""

        kind, program, flag, code = service["healthcheck"]["test"]
        compile(code, "healthcheck", "exec")
        assert (kind, program, flag) == ("CMD", "python", "-c")

    def test_only_the_temporary_folder_is_writable(self, service: dict[str, Any]) -> None:
        """The root and the models are read-only, and privileges cannot be gained."""

        held = (service["read_only"], service["tmpfs"], service["cap_drop"])
        assert held == (True, ["/tmp:exec"], ["ALL"])  # noqa: S108  a folder of the container
        assert [volume.rpartition(":")[2] for volume in service["volumes"]] == ["ro"]

    def test_target_is_a_stage_of_the_dockerfile(self, service: dict[str, Any]) -> None:
        build = service["build"]
        assert service["image"] == f"openai-frontend:{build['target']}"
        assert build["target"] in stages(ROOT / build["dockerfile"])

    def test_stop_grace_period_covers_the_shutdown_timeouts(self, service: dict[str, Any]) -> None:
        """Docker waits for the grace period of streams and the core's shutdown time."""

        patience_s = Settings().graceful_shutdown_timeout_s + Settings().exit_timeout_s
        assert int(service["stop_grace_period"].removesuffix("s")) > patience_s
