"""The options of `top`. Imports nothing that only the running command needs."""

import argparse
from pathlib import Path

KEY_VARIABLE = "OPENAI_API_KEY"

_URL = "http://127.0.0.1:9000"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "url", metavar="URL", nargs="?", default=_URL, help=f"gateway URL. Default: {_URL}."
    )
    command.add_argument(
        "--key-file",
        type=Path,
        metavar="PATH",
        help="file that contains only an API key with the scopes metrics and models. "
        f"Default: the key in ${KEY_VARIABLE}, if set.",
    )
    command.add_argument(
        "--unix-socket", type=Path, metavar="PATH", help="Unix socket to connect to"
    )
    command.add_argument(
        "--ca", type=Path, metavar="PATH", help="CA bundle (PEM) that verifies the gateway"
    )
    command.add_argument(
        "--certificate",
        type=Path,
        metavar="PATH",
        help="client certificate and its key (PEM), for a gateway with tls_client_ca",
    )
    command.add_argument(
        "--interval",
        type=_interval,
        default=1.0,
        metavar="SECONDS",
        help="seconds between updates, 0.1 to 3600. Default: 1.",
    )
    command.add_argument("--once", action="store_true", help="measure for one second, then exit")
    command.add_argument(
        "--json", dest="as_json", action="store_true", help="write one JSON object per update"
    )


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 0.1 to 3600")
    return seconds
