"""`ray init` writes files that `check`, Ray and a shell can read."""

import re
import subprocess

import pytest
import yaml

from openai_frontend.cli import main
from openai_frontend.config import ray_application
from openai_frontend.config.loader import InvalidSettings
from tests.gateway_process import ROOT

REPOSITORY = ROOT / "model_repository"


def init(folder, *options, model=REPOSITORY):
    return main(["ray", "init", str(model), f"--output={folder}", *map(str, options)])


def variables(folder):
    """What a shell that reads the file passes on."""
    command = f"set -a; . {folder / 'ray.env'}; set +a; env -0"
    output = subprocess.check_output(["/bin/sh", "-c", command], text=True, env={})
    lines = dict(each.split("=", 1) for each in output.split("\0") if each)
    return {name: value for name, value in lines.items() if name.startswith(("RAY_", "OPENAI_"))}


def test_files_fit_together(tmp_path, capsys):
    """The deployment accepts the arguments and the environment, and has the given resources."""
    assert init(tmp_path, "--min-replicas=2", "--max-replicas=5", "--num-gpus=0.5") == 0

    arguments = ray_application.read(tmp_path / "gateway.yaml")
    settings = ray_application.settings_of(arguments)
    ray_application.check_environment(variables(tmp_path), arguments, settings)
    options = ray_application.deployment_options(arguments, settings)
    assert arguments.model == str(REPOSITORY)
    assert options["autoscaling_config"]["max_replicas"] == 5
    assert options["ray_actor_options"] == {"num_cpus": 1, "num_gpus": 0.5, "resources": {}}
    assert variables(tmp_path)["RAY_SERVE_HAPROXY_RETRIES"] == "11"  # 5 old, 5 new, Ray's proxy
    assert f"serve deploy {tmp_path / 'gateway.yaml'}" in capsys.readouterr().out


def test_names_of_the_hub_stay(tmp_path):
    """Only folders become absolute, because Ray's workers have another current folder."""
    init(tmp_path, model="acme/tiny")

    assert ray_application.read(tmp_path / "gateway.yaml").model == "acme/tiny"


@pytest.mark.parametrize("name", ["a: b", "a #b", "[a", 'it\'s "a"', "ä 😀 \\n", "x" * 90 + " y"])
def test_any_path_and_address_is_read_back(tmp_path, name):
    """YAML has other meanings for some characters, and breaks long lines."""
    folder = tmp_path / name
    folder.mkdir()
    init(tmp_path, "--host=::", model=folder)

    assert ray_application.read(tmp_path / "gateway.yaml").model == str(folder)
    options = yaml.safe_load((tmp_path / "gateway.yaml").read_text())["http_options"]
    assert options == {"host": "::", "port": 9000}


@pytest.mark.parametrize(
    ("routing", "first"),
    [
        ("least", "leastconn"),
        ("session", "hash var(txn.session)"),
        ("prefix", 'hash "req.body,regsub('),
    ],
)
def test_haproxy_chooses_the_replica(tmp_path, routing, first):
    """By lines of its configuration, without asking anyone; affinity has a bound."""
    init(tmp_path, f"--routing={routing}")

    lines = variables(tmp_path)["RAY_SERVE_HAPROXY_BALANCE_ALGORITHM"].splitlines()
    assert lines[0].startswith(first)
    assert lines[-1] == "    option http-buffer-request"
    assert ("    hash-balance-factor 200" in lines) == (routing != "least")


def test_prefill_replicas_have_a_key(tmp_path):
    """A new one each time, in a file that only its owner reads; `check` finds one that is lost."""
    init(tmp_path, "--prefill-replicas=2", "--num-gpus=1")
    file = tmp_path / "ray.env"
    key = variables(tmp_path)[ray_application.TRANSFER_KEY]
    arguments = ray_application.read(tmp_path / "gateway.yaml")
    settings = ray_application.settings_of(arguments)

    assert arguments.prefill is not None
    assert key.startswith("sk-")
    assert file.stat().st_mode & 0o777 == 0o600
    assert key not in (tmp_path / "gateway.yaml").read_text()
    options = ray_application.prefill_options(arguments, arguments.prefill, settings)
    assert (options["num_replicas"], options["ray_actor_options"]["num_gpus"]) == (2, 1)
    init(tmp_path, "--prefill-replicas=2", "--force")
    assert variables(tmp_path)[ray_application.TRANSFER_KEY] != key

    without = {k: v for k, v in variables(tmp_path).items() if k != ray_application.TRANSFER_KEY}
    with pytest.raises(InvalidSettings, match=r"`prefill` needs it.*--prefill-replicas 2 --force"):
        ray_application.check_environment(without, arguments, settings)


def test_weights_get_a_connector(tmp_path):
    """A model repository has its own in model.json."""
    init(tmp_path / "hub", "--prefill-replicas=1", model="acme/tiny")
    init(tmp_path / "folder", "--prefill-replicas=1")

    engine_arg = ray_application.settings_of(
        ray_application.read(tmp_path / "hub" / "gateway.yaml")
    ).engine_arg
    assert engine_arg["kv_transfer_config"] == {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
    }
    assert ray_application.read(tmp_path / "folder" / "gateway.yaml").settings == {}


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


def test_routers_agree_on_the_headers_of_a_session(tmp_path):
    """HAProxy's last line wins, Envoy's first; then comes the API key, except with Ray."""
    init(tmp_path, "--routing=session")
    ray = variables(tmp_path)["RAY_SERVE_HAPROXY_BALANCE_ALGORITHM"]
    haproxy = (ROOT / "deploy" / "haproxy" / "openai-frontend.cfg").read_text()
    envoy = (ROOT / "deploy" / "envoy" / "openai-frontend.yaml").read_text()
    line = re.compile(r"set-var\(txn\.\w+\) req\.hdr\(([\w-]+)\)")
    header = re.compile(r"req\.hdr\(([\w-]+)\),set-var\(txn\.session\)")
    in_order = re.findall(r"hash_policy:|header: {header_name: ([\w-]+)}", envoy)[1:]

    assert line.findall(haproxy)[::-1] == in_order
    assert [*header.findall(ray)[::-1], "authorization", "x-api-key"] == in_order
    assert len(in_order) == 8
