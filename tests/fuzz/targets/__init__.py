"""The parsers of untrusted bytes, one module each: `check(data)` raises where one of its facts does
not hold. No module here needs the fuzzer, so that the ordinary suite replays what was found.
"""

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

CORPUS = Path(__file__).parent.parent / "corpus"

NAMES = (
    "chat_request",
    "completion_request",
    "engine_tensors",
    "http_request",
    "json_body",
    "json_schema",
    "json_size",
    "json_web_token",
    "keys_file",
    "kserve_body",
    "kserve_tensor",
    "model_options",
    "output_parser",
    "output_parser_time",
    "settings_file",
    "sse_frames",
    "told_headers",
)


class Target(Protocol):
    """A module of this package."""

    WORDS: Iterable[str]  # what its language is made of, for the fuzzer to put together
    SEEDS: Iterable[bytes]  # inputs to begin with where the corpus is empty

    def check(self, data: bytes) -> None:
        """Any exception is a finding."""


def target(name: str) -> Target:
    """By its name; ValueError for another."""
    if name not in NAMES:
        raise ValueError(f"there is no target '{name}'; there are {', '.join(NAMES)}")
    return cast(Target, import_module(f"{__name__}.{name}"))


def corpus(name: str) -> list[Path]:
    """The kept inputs of a target."""
    return sorted(path for path in (CORPUS / name).glob("*") if path.is_file())
