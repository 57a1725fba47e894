"""Why pip found no file of a locked package, on one line.

Only the standard library: nothing is installed yet when it is needed.
"""

import json
import os
import platform
import re
import sys
import urllib.request

INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple")
_JSON = "application/vnd.pypi.simple.v1+json"
_TIMEOUT_S = 20
_MOST = 6  # tags in the line

_NOT_FOUND = re.compile(r"No matching distribution found for ([\w.-]+)==(\S+)")
_UNSUPPORTED = re.compile(r"(\S+\.whl) is not a supported wheel on this platform")


def explained(output: str) -> str | None:
    """One line for pip's output if a file does not fit or does not exist, else None."""
    here = f"Python {platform.python_version()} on {platform.machine()}{_libc()}"
    if unsupported := _UNSUPPORTED.search(output):
        name = unsupported[1].rpartition("/")[2]
        return (
            f"{name} is a wheel for another Python or machine; {_tag()} is needed for {here}:"
            " take the file for it, or build one with make wheel"
        )
    if not_found := _NOT_FOUND.search(output):
        name, version = not_found.groups()
        if "+" in version:
            return (
                f"{name} {version} was not found, and PyPI has no such builds: point"
                " PIP_EXTRA_INDEX_URL to PyTorch's CPU index, or run make VLLM=none for a set-up"
                " without vLLM"
            )
        return f"{name} {version} has no file for {here}; {_advice(name, version)}"
    return None


def _advice(name: str, version: str) -> str:
    """What the index has instead, and what to do."""
    try:
        tags = offered(name, version)
    except (OSError, ValueError) as error:
        return f"{INDEX} did not tell which it has ({error}): check the network and PIP_INDEX_URL"
    if not tags:
        return f"{INDEX} has none at all: set PIP_INDEX_URL to an index that has it"
    shown = ", ".join(tags[:_MOST]) + (", ..." if len(tags) > _MOST else "")
    pythons = [f"3.{minor}" for minor in (11, 12, 13) if any(f"cp3{minor}-" in tag for tag in tags)]
    other = f"make PYTHON=python{pythons[0]}" if pythons else "a machine that one of them fits"
    return f"there are {shown}: use {other}"


def offered(name: str, version: str) -> list[str]:
    """The tags of a release's wheels for Linux, and "source" for an archive."""
    request = urllib.request.Request(  # noqa: S310  the developer's own index
        f"{INDEX.rstrip('/')}/{_normalized(name)}/", headers={"Accept": _JSON}
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310
        files = [file["filename"] for file in json.load(response)["files"]]
    found = {tag for file in files if (tag := tag_of(file, name, version))}
    return sorted(found)


def tag_of(filename: str, name: str, version: str) -> str | None:
    """The tag of a file if it is of this release and not for another system than Linux."""
    wheel = filename.endswith(".whl")
    parts = filename.removesuffix(".whl").removesuffix(".tar.gz").split("-")
    if len(parts) < 2 or (_normalized(parts[0]), parts[1]) != (_normalized(name), version):
        return None
    if not wheel:
        return "source"
    tag = "-".join(parts[-3:])
    return None if re.search(r"-(win|macosx|ios|android)", tag) else tag


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _tag() -> str:
    return f"cp{sys.version_info.major}{sys.version_info.minor}, {platform.machine()}"


def _libc() -> str:
    return " with {} {}".format(*found) if all(found := platform.libc_ver()) else ""
