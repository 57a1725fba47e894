"""The options of `top`. Asks nobody."""

import argparse
from pathlib import Path

KEY_VARIABLE = "OPENAI_API_KEY"

_URL = "http://127.0.0.1:9000"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Its options."""
    command.add_argument(
        "url", metavar="URL", nargs="?", default=_URL, help=f"of the gateway. Default: {_URL}."
    )
    command.add_argument(
        "--key-file",
        type=Path,
        metavar="PATH",
        help="a file that holds a key with the scopes metrics and models, and nothing else. "
        f"Default: the key in ${KEY_VARIABLE}, if any.",
    )
    command.add_argument(
        "--unix-socket", type=Path, metavar="PATH", help="where the gateway listens there"
    )
    command.add_argument(
        "--ca", type=Path, metavar="PATH", help="the authority of its certificate, as PEM"
    )
    command.add_argument(
        "--certificate",
        type=Path,
        metavar="PATH",
        help="its own certificate and key, as PEM, where the gateway wants one (tls_client_ca)",
    )
    command.add_argument(
        "--interval", type=_interval, default=1.0, metavar="SECONDS", help="Default: 1."
    )
    command.add_argument("--once", action="store_true", help="show one second of it, and end")
    command.add_argument(
        "--json", dest="as_json", action="store_true", help="write an object on a line each time"
    )


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"'{text}' is no number from 0.1 to 3600")
    return seconds
