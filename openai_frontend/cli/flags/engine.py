"""The engine flags of `vllm serve`, which `serve MODEL` passes to vLLM."""

import importlib
import json
import re
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from openai_frontend.cli.flags.engine_names import ONE, SEVERAL, SHORT, SWITCHES
from openai_frontend.cli.flags.rules import Takes

_LEVEL = re.compile(r"-O=?\w+")  # -O3


def takes(name: str) -> Takes | None:
    """How many values an engine flag takes; None for other flags."""
    if name == "-O":
        return "one"
    if _LEVEL.fullmatch(name):
        return "none"
    key, dot, _ = SHORT.get(name, name).partition(".")
    plain = SHORT.get(key, key).removeprefix("--")
    if dot or plain in ONE:
        return "one" if is_engine_flag(key) else None
    if plain in SEVERAL:
        return "several"
    if plain in SWITCHES or plain.removeprefix("no-") in SWITCHES:
        return "switch" if plain in SWITCHES else "none"
    if not is_engine_flag(key):
        return None
    return "none" if plain.startswith("no-") else "one"


def is_engine_flag(key: str) -> bool:
    """Whether the table or the installed vLLM has this flag."""
    plain = SHORT.get(key, key).removeprefix("--")
    if plain in ONE or plain in SEVERAL or plain.removeprefix("no-") in SWITCHES:
        return True
    known = _vllm().names()
    return key in known or f"--{plain.removeprefix('no-')}" in known


def argument(flag: str) -> str:
    """The engine argument of a flag, as model.json has it."""
    key = flag.partition(".")[0]
    if key.startswith("-O"):
        return "optimization_level"
    return SHORT.get(key, key).removeprefix("--").removeprefix("no-").replace("-", "_")


def read(words: Sequence[str]) -> tuple[Mapping[str, Any], Sequence[str]]:
    """The engine arguments of one flag, and the words after its values. Raises ValueError."""
    result: tuple[Mapping[str, Any], Sequence[str]] = _vllm().read(words)
    return result


def is_installed() -> bool:
    return bool(_vllm().names())


def as_options(arguments: Mapping[str, Any]) -> list[str]:
    """Our options that set them."""
    return [
        word
        for name, value in arguments.items()
        for word in ("--engine-arg", f"{name}={json.dumps(value)}")
    ]


def _vllm() -> ModuleType:
    # by name, as the backend does: nothing imports the engines
    return importlib.import_module("openai_frontend.engines.vllm.flags")
