"""The SHA-256 of each file of a pinned release, from the package index."""

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple")
_JSON = "application/vnd.pypi.simple.v1+json"
_TIMEOUT_S = 60
_AT_ONCE = 8

# The core is a Linux library, and pyproject.toml asks for Python 3.11.
_OTHER_SYSTEMS = re.compile(r"-(win|macosx|ios|android|pyodide|emscripten)[^-]*$")
_OTHER_PYTHONS = re.compile(r"-(cp2\d|cp3\d|cp310|pp\d+|graalpy\d+)-(?!abi3)")


class NotOnIndex(Exception):
    """The index has no file of a pin that could be installed here."""


def with_hashes(pins: Iterable[str]) -> list[str]:
    """Each pin with the hashes of its files, as pip's hash-checking mode reads it."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(_line, pins))


def _line(pin: str) -> str:
    name, _, version = pin.partition("==")
    hashes = sorted({file["hashes"]["sha256"] for file in _files(name, Version(version))})
    if not hashes:
        raise NotOnIndex(f"{INDEX} has no file of {pin}")
    return " \\\n    ".join([pin, *(f"--hash=sha256:{each}" for each in hashes)])


def _files(name: str, version: Version) -> Iterator[dict[str, Any]]:
    request = urllib.request.Request(  # noqa: S310  the developer's own index
        f"{INDEX.rstrip('/')}/{name}/", headers={"Accept": _JSON}
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310
            files = json.load(response)["files"]
    except urllib.error.HTTPError as error:
        raise NotOnIndex(f"{INDEX}: {name}: {error}") from error
    for file in files:
        if is_of(file["filename"], name, version) and fits(file["filename"]):
            yield file


def is_of(filename: str, name: str, version: Version) -> bool:
    """Whether a file is a wheel or a source archive of this release."""
    parse = parse_wheel_filename if filename.endswith(".whl") else parse_sdist_filename
    try:
        found, its_version, *_ = parse(filename)
    except (InvalidWheelFilename, InvalidSdistFilename):
        return False
    return found == canonicalize_name(name) and its_version == version


def fits(filename: str) -> bool:
    """Whether a file may be installed on Linux by one of the Pythons that the project takes."""
    if not filename.endswith(".whl"):
        return True
    tags = filename.removesuffix(".whl")
    return not (_OTHER_SYSTEMS.search(tags) or _OTHER_PYTHONS.search(tags))
