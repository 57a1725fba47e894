"""A pytest plugin that puts the AddressSanitizer build in the place of the usual extension."""

import importlib.util
import os
import sys

import pytest

NAME = "openai_frontend.triton._core"


def load(path: str) -> None:
    """Load it under the usual name, so that imports of that name get it."""
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None  # noqa: S101 - the path ends in .so,
    assert spec.loader is not None  # noqa: S101 - which always has a loader
    sys.modules[NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[NAME])


# Here, not in a hook: conftest files import the extension before any hook runs.
load(os.environ["OPENAI_FRONTEND_SANITIZED_CORE"])
# For this process only: compilers and other programs that the tests start have leaks of their own.
os.environ.pop("LD_PRELOAD", None)


def pytest_sessionstart() -> None:
    """Fail at once: NumPy, where a plugin or a conftest file imports it, is reported as a leak."""
    if "numpy" in sys.modules:
        raise pytest.UsageError("tests/conftest.py or one of its plugins imports NumPy")
