"""`ray init`: writes gateway.yaml for `serve deploy`, and ray.env for `ray start` (docs/ray.md)."""

import argparse
import math
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from openai_frontend.auth.api_keys import new_secret
from openai_frontend.cli.init_repo.options import expanded, holds_weights
from openai_frontend.config import ray_application
from openai_frontend.config.loader import InvalidSettings
from openai_frontend.config.settings import Settings

GATEWAY, ENVIRONMENT = "gateway.yaml", ray_application.ENVIRONMENT_FILE

# Environment variables that Ray's processes need (`ray_application.check_environment`)
_RAY = {
    "RAY_SERVE_ENABLE_HA_PROXY": ("1", "Clients reach the replicas through HAProxy, not Python."),
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": ("0", "No token changes threads."),
    "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": (
        "{longest_s}",
        "A change of replicas does not cut streams that are shorter (request_timeout_s).",
    ),
    "RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S": (
        "{silence_s}",
        "A replica may be silent for so long (above first_token_timeout_s).",
    ),
    "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": ("{longest_s}", "A client may wait for so long."),
    # After an update the old HAProxy process keeps the connections of running streams, and knows
    # only replicas that are gone. The client's next request on one of them tries each, and then
    # Ray's own proxy, which knows the new ones.
    "RAY_SERVE_HAPROXY_RETRY_ON": (
        "conn-failure empty-response 503",
        "Another replica takes a request that was not started.",
    ),
    "RAY_SERVE_HAPROXY_RETRIES": (
        "{tries}",
        "Enough to try each replica of an update, old and new, and then Ray's own proxy.",
    ),
    "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": (
        "131072",
        "Bytes of a request that HAProxy holds, to read its beginning and to send it again.",
    ),
    "RAY_SERVE_HAPROXY_OBSERVE_ERROR_LIMIT": (
        "1",
        "A replica that refuses a connection gets no requests until a health check succeeds.",
    ),
}
# HAProxy's `balance` in Ray's configuration, which takes the lines after it too. Only a request
# that HAProxy has read completely can go to another replica after a 503.
_BALANCE = "RAY_SERVE_HAPROXY_BALANCE_ALGORITHM"
_BUFFERED = "\n    option http-buffer-request"
# If a replica has twice the mean of requests, the next ones go to another replica
# (docs/decisions/0021-routing-and-replicas.md).
_BOUNDED = f"\n    hash-type consistent\n    hash-balance-factor 200{_BUFFERED}"
# All turns of a conversation share the body up to the first assistant message: cut there, or at
# the end of a list, which is `messages` in the first turn. A request without a body has no first
# word, so it is not hashed, but goes to the replicas in rotation. Marks of Anthropic's API are on
# the last message, so they move from turn to turn.
_MARK = r""", ?\"cache_control\": ?\{[^\}]*\}"""
_BEGINNING = r"""(?s)(\}\]|\}, ?\{\"role\": ?\"assistant\"|\"assistant\").*"""
# A request's session is the last of these that it has.
_SESSIONS = (
    "req.body,json_query('$.prompt_cache_key')",
    "req.hdr(x-claude-code-session-id)",
    "req.hdr(thread-id)",
    "req.hdr(session-id)",
    "req.hdr(session_id)",
    "req.hdr(x-session-affinity)",
    "req.hdr(x-session-id)",
)
# Ray writes these lines into a section that may not have `http-request`, but may have the format
# of a header, which HAProxy evaluates before it chooses a replica.
_SESSION = "".join(
    [
        "\n    unique-id-format ",
        *(f"%[{each},set-var(txn.session)]" for each in _SESSIONS),
        "\n    unique-id-header x-ray-session",
    ]
)
_ROUTING = {
    "least": f"leastconn{_BUFFERED}",
    "session": f"hash var(txn.session){_SESSION}{_BOUNDED}",
    "prefix": f"""hash "req.body,regsub('{_MARK}','',g),regsub('{_BEGINNING}',''),word(1,\\x01)\""""
    f"{_BOUNDED}",
}
_WHY = {
    **{name: why for name, (_, why) in _RAY.items()},
    _BALANCE: "How HAProxy chooses a replica (--routing), in its own words.",
    ray_application.TRANSFER_KEY: "With which replicas ask for prompts to be computed: a secret.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="ray_command", metavar="COMMAND", required=True)
    init = commands.add_parser(
        "init",
        help="write the files that `serve deploy` and `ray start` need",
        description=f"Write {GATEWAY} for `serve deploy`, and {ENVIRONMENT} for `ray start`.",
        allow_abbrev=False,
    )
    init.add_argument(
        "model",
        metavar="MODEL",
        help="as in `openai-frontend serve MODEL`; a folder must exist on every node",
    )
    init.add_argument(
        "--output", type=Path, default=Path(), metavar="FOLDER", help="Default: this folder."
    )
    init.add_argument("--min-replicas", type=_count, default=1, metavar="NUMBER")
    init.add_argument("--max-replicas", type=_count, default=1, metavar="NUMBER")
    init.add_argument(
        "--num-gpus", type=float, default=0, metavar="NUMBER", help="GPUs of a replica. Default: 0."
    )
    init.add_argument(
        "--num-cpus", type=float, default=1, metavar="NUMBER", help="CPUs of a replica. Default: 1."
    )
    init.add_argument(
        "--prefill-replicas",
        type=_count,
        metavar="NUMBER",
        help="Further replicas, which compute prompts for the others (docs/disaggregation.md). "
        "Default: none.",
    )
    init.add_argument("--host", default="127.0.0.1", help="Address of HAProxy. Default: 127.0.0.1.")
    init.add_argument("--port", type=int, default=9000, help="Port of HAProxy. Default: 9000.")
    init.add_argument(
        "--routing",
        choices=_ROUTING,
        default="least",
        help="least: the replica with the fewest requests. session: the same replica for requests "
        "of one session, by its header or prompt_cache_key (docs/scale.md). prefix: the same "
        "replica for chats that begin alike. Default: least.",
    )
    init.add_argument("--force", action="store_true", help="Overwrite existing files.")


def run(options: Mapping[str, Any]) -> None:
    """Raises InvalidSettings and OSError."""
    if options["max_replicas"] < options["min_replicas"]:
        raise InvalidSettings("--max-replicas: must be at least --min-replicas")
    contents = {GATEWAY: gateway(options), ENVIRONMENT: environment(options)}
    folder: Path = options["output"]
    for name in contents:
        if (folder / name).exists() and not options["force"]:
            raise InvalidSettings(f"{folder / name} exists; add --force to overwrite it")
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).touch()
        if ray_application.TRANSFER_KEY in content:
            (folder / name).chmod(0o600)
        (folder / name).write_text(content)
        sys.stdout.write(f"wrote {folder / name}\n")
    sys.stdout.write(
        "\nStart Ray on the first machine, and deploy:\n"
        f"set -a; . {folder / ENVIRONMENT}; set +a\n"
        "ray get-auth-token --generate\n"
        "ray start --head\n"
        f"serve deploy {folder / GATEWAY}\n"
    )


def gateway(options: Mapping[str, Any]) -> str:
    """The file for `serve deploy`."""
    model = options["model"]
    if expanded(model).exists():
        model = str(expanded(model).resolve())
    return f"""\
# Written by `openai-frontend ray init`. Deploy it with `serve deploy` (docs/ray.md).
proxy_location: EveryNode
http_options:
  host: {_quoted(options["host"])}
  port: {options["port"]}
applications:
  - name: gateway
    route_prefix: /
    import_path: openai_frontend.ray:app
    args:
      model: {_quoted(model)}
      settings: {_settings(options)} # the keys of the settings file
      replicas:
        min: {options["min_replicas"]}
        max: {options["max_replicas"]}
      num_cpus: {options["num_cpus"]:g}
      num_gpus: {options["num_gpus"]:g}
{_prefill(options)}"""


def _quoted(text: str) -> str:
    """For YAML, on one line: `::` and a path with ` #` in it would not be read as they are."""
    return yaml.safe_dump(text, default_style='"', width=math.inf).rstrip("\n")


def _settings(options: Mapping[str, Any]) -> str:
    """A model repository names the connector in its model.json; for weights it is written here."""
    model = expanded(options["model"])
    if not options["prefill_replicas"] or (model.is_dir() and not holds_weights(model)):
        return "{}"
    connector = "{kv_connector: NixlConnector, kv_role: kv_both}"
    return f"{{engine_arg: {{kv_transfer_config: {connector}}}}}"


def _prefill(options: Mapping[str, Any]) -> str:
    if not options["prefill_replicas"]:
        return ""
    return f"""\
      prefill: # further replicas, which compute prompts for the others
        replicas: {options["prefill_replicas"]}
        num_cpus: {options["num_cpus"]:g}
        num_gpus: {options["num_gpus"]:g}
"""


def environment(options: Mapping[str, Any]) -> str:
    """The file for `ray start` on every node."""
    lines = [
        f"# {_WHY[name]}\n{name}={shlex.quote(value)}\n"
        for name, value in variables(options).items()
    ]
    return "# For `ray start` on every node; Ray's processes read it.\n" + "".join(lines)


def variables(options: Mapping[str, Any]) -> dict[str, str]:
    """Environment variables of Ray's processes, for the default timeouts."""
    settings = Settings()
    numbers = {
        "tries": ray_application.retries(options["max_replicas"]),
        "longest_s": int(settings.request_timeout_s) + 60,
        "silence_s": int(settings.first_token_timeout_s) + 300,
    }
    found = {name: value.format(**numbers) for name, (value, _) in _RAY.items()}
    found[_BALANCE] = _ROUTING[options["routing"]]
    if options["prefill_replicas"]:
        found[ray_application.TRANSFER_KEY] = new_secret()
    return found


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number
