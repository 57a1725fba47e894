"""Stops an image's build where its vLLM is not the one that this package drives."""

import sys
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement


def problem() -> str | None:
    """One line, or None where the versions fit."""
    wanted = next(
        requirement
        for requirement in map(Requirement, requires("openai-frontend") or [])
        if requirement.name == "vllm"
    )
    try:
        found = version("vllm")
    except PackageNotFoundError:
        return f"the base image has no vLLM; {wanted.specifier} is needed"
    if wanted.specifier.contains(found.partition("+")[0], prereleases=True):
        return None
    return f"the base image has vLLM {found}; {wanted.specifier} is needed: choose another release"


if __name__ == "__main__":
    sys.exit(problem())
