"""`ray init` writes files that `check`, Ray and a shell can read."""

import subprocess

import pytest

from openai_frontend.cli import main
from openai_frontend.config import ray_application
from tests.gateway_process import ROOT

REPOSITORY = ROOT / "model_repository"


def init(folder, *options, model=REPOSITORY):
    return main(["ray", "init", str(model), f"--output={folder}", *map(str, options)])


def variables(folder):
    """What a shell that reads the file passes on."""
    command = f"set -a; . {folder / 'ray.env'}; set +a; env"
    output = subprocess.check_output(["/bin/sh", "-c", command], text=True, env={})
    lines = dict(line.split("=", 1) for line in output.splitlines())
    return {name: value for name, value in lines.items() if name.startswith("RAY_")}


def test_files_fit_together(tmp_path, capsys):
    """The deployment accepts the arguments and the environment, and has the given resources."""
    assert init(tmp_path, "--min-replicas=2", "--max-replicas=5", "--num-gpus=0.5") == 0

    arguments = ray_application.read(tmp_path / "gateway.yaml")
    settings = ray_application.settings_of(arguments)
    ray_application.check_environment(variables(tmp_path), arguments, settings)
    options = ray_application.deployment_options(arguments, settings)
    assert arguments.model == str(REPOSITORY)
    assert options["autoscaling_config"]["max_replicas"] == 5
    assert options["ray_actor_options"] == {"num_cpus": 1, "num_gpus": 0.5}
    assert variables(tmp_path)["RAY_SERVE_HAPROXY_RETRIES"] == "11"  # 5 old, 5 new, Ray's proxy
    assert f"serve deploy {tmp_path / 'gateway.yaml'}" in capsys.readouterr().out


def test_names_of_the_hub_stay(tmp_path):
    """Only folders become absolute, because Ray's workers have another current folder."""
    init(tmp_path, model="acme/tiny")

    assert ray_application.read(tmp_path / "gateway.yaml").model == "acme/tiny"


def test_sessions_stay(tmp_path):
    """HAProxy chooses the replica by the session, without asking anyone."""
    init(tmp_path, "--routing=session")

    assert variables(tmp_path)["RAY_SERVE_HAPROXY_BALANCE_ALGORITHM"] == "hdr(x-session-id)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--min-replicas=3", "--max-replicas=2"), "--max-replicas: must be at least"),
        ((), "exists; add --force"),
    ],
)
def test_refusals(tmp_path, capsys, options, message):
    """Files of the user are kept, and wrong numbers are named."""
    (tmp_path / "ray.env").write_text("mine")

    assert init(tmp_path, *options) == 2
    assert message in capsys.readouterr().err
    assert (tmp_path / "ray.env").read_text() == "mine"
    assert not (tmp_path / "gateway.yaml").exists()


def test_check_reads_the_file(tmp_path, capsys):
    """`check gateway.yaml` reports the models that a replica would serve, and a wrong setting."""
    init(tmp_path)
    file = tmp_path / "gateway.yaml"
    capsys.readouterr()

    assert main(["check", str(file)]) == 0
    assert "demo-embedding" in capsys.readouterr().out

    file.write_text(file.read_text().replace("settings: {}", "settings: {queue_timeout: 3}"))
    assert main(["check", str(file)]) == 2
    assert "unknown setting 'queue_timeout'; did you mean" in capsys.readouterr().err


def test_check_finds_files_that_do_not_fit(tmp_path, capsys):
    """More replicas in gateway.yaml than those for which ray.env was written."""
    init(tmp_path, "--max-replicas=3")
    file = tmp_path / "gateway.yaml"
    assert main(["check", str(file)]) == 0

    file.write_text(file.read_text().replace("max: 3", "max: 4"))
    assert main(["check", str(file)]) == 2
    message = capsys.readouterr().err
    assert f"{tmp_path / 'ray.env'}: RAY_SERVE_HAPROXY_RETRIES: 7 is too few" in message
    assert "needs 9. Write ray.env again (`ray init --max-replicas 4 --force`)" in message
