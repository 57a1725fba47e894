"""The parsers of untrusted bytes, one module each.

`check(data)` raises if one of the module's facts does not hold. No module here needs the fuzzer, so
the ordinary test suite can replay findings.
"""

import zipfile
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

CORPUS = Path(__file__).parent.parent / "corpus"

NAMES = (
    "audio_file",
    "chat_request",
    "completion_request",
    "engine_tensors",
    "grpc_message",
    "http_request",
    "image_part",
    "json_body",
    "json_schema",
    "json_size",
    "json_web_token",
    "keys_file",
    "kserve_body",
    "kserve_tensor",
    "message_request",
    "model_options",
    "multipart_form",
    "output_events",
    "output_parser",
    "output_parser_time",
    "response_request",
    "settings_file",
    "shared_memory",
    "sse_frames",
    "forwarded_headers",
)


class Target(Protocol):
    """The interface of a module of this package."""

    WORDS: Iterable[str]  # tokens of its language, which the fuzzer combines
    SEEDS: Iterable[bytes]  # initial inputs, next to those of the corpus

    def check(self, data: bytes) -> None:
        """Check one input. Any exception is a finding."""


def target(name: str) -> Target:
    """Return the target with this name; raise ValueError for an unknown one."""
    if name not in NAMES:
        raise ValueError(f"there is no target '{name}'; there are {', '.join(NAMES)}")
    return cast(Target, import_module(f"{__name__}.{name}"))


def corpus(name: str) -> dict[str, bytes]:
    """Return the stored inputs of a target by name."""
    with zipfile.ZipFile(_archive(name)) as archive:
        return {each: archive.read(each) for each in archive.namelist()}


def write_corpus(name: str, inputs: Mapping[str, bytes]) -> None:
    """Store the inputs of a target. The same inputs always give the same archive."""
    with zipfile.ZipFile(_archive(name), "w", zipfile.ZIP_DEFLATED) as archive:
        for each, data in sorted(inputs.items()):
            archive.writestr(zipfile.ZipInfo(each), data, zipfile.ZIP_DEFLATED)


def _archive(name: str) -> Path:
    return CORPUS / f"{name}.zip"
