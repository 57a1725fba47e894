"""Recognises a torchvision that is another build than torch, beside which vLLM's import fails with
`operator torchvision::nms does not exist`.
"""

import importlib.util
import platform
from importlib.metadata import PackageNotFoundError, version

_INDEX = "https://download.pytorch.org/whl"
_COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
_CPU = "cpu"


def check() -> None:
    """Raises ValueError with both versions and the cure. Imports nothing."""
    torch = _version("torch")
    if torch is None:
        return
    found = {name: _version(name) for name in _COMPANIONS if importlib.util.find_spec(name)}
    others = [f"{name} {of}" for name, of in found.items() if of and _differ(torch, of)]
    if not any(each.startswith("torchvision") for each in others):
        return  # vLLM imports the others only for models that need them
    names = " ".join(each.partition(" ")[0] for each in others)
    index = f"{_INDEX}/{torch.partition('+')[2]}".rstrip("/")
    raise ValueError(
        f"torch {torch} and {' and '.join(others)} are different builds, with which vLLM cannot be"
        f" imported. Run: pip uninstall -y {names}. If a model needs them, install their builds"
        f" from {index}"
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _differ(torch: str, other: str) -> bool:
    """CUDA builds differ by the major version: 12 in cu126 and cu128."""
    kinds = [_kind(torch), _kind(other)]
    return None not in kinds and kinds[0] != kinds[1] and _is_certain(kinds)


def _kind(version_: str) -> str | None:
    """`cpu`, `cu12`, `cuda` if the CUDA version is unknown, None if the build is unknown."""
    tag = version_.partition("+")[2]
    if not tag:  # PyPI's: for CUDA on x86-64, elsewhere some are for CPUs
        return "cuda" if platform.machine() == "x86_64" else None
    return tag[:4]


def _is_certain(kinds: list[str | None]) -> bool:
    return "cuda" not in kinds or _CPU in kinds
