"""The packages of an installation and their known vulnerabilities."""

import json
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts import supply
from scripts.setup import lock

ROOT = Path(__file__).parents[3]
PROJECT = lock.read_project(ROOT / "pyproject.toml")


def reasons() -> dict[str, str]:
    """Package -> the reason in the README's table."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.partition("## Dependencies\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", table, re.MULTILINE)[1:]
    names = [(name, why) for packages, why in rows for name in re.split(r", | / |; ", packages)]
    return {lock.normalize(name.strip()): why.strip() for name, why in names}


def of_users() -> set[str]:
    """The packages that an installation may have: dependencies, extras and build requirements."""
    project = PROJECT["project"]
    extras = [each for extra in project["optional-dependencies"].values() for each in extra]
    texts = [*project["dependencies"], *extras, *PROJECT["build-system"]["requires"]]
    return {lock.normalize(Requirement(text).name) for text in texts}


def of_developers() -> set[str]:
    groups = PROJECT["dependency-groups"]
    texts = [text for name in groups for text in lock.group(PROJECT, name)]
    return {lock.normalize(Requirement(text).name) for text in texts}


def test_every_dependency_has_a_reason() -> None:
    """Each has a row in the README."""
    assert of_users() - reasons().keys() == set()
    assert [name for name, why in reasons().items() if not why] == []


def test_every_reason_has_a_dependency() -> None:
    """Rows name existing packages; the lock pins the wheel with the core."""
    core = {lock.TRITON_CORE.partition("==")[0]}

    assert reasons().keys() - of_users() - of_developers() - core == set()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"vulnerabilities": [{"id": "a"}]}, ""),
        ({"vulnerabilities": []}, "has no vulnerabilities"),
        ({}, "has no vulnerabilities"),
        (None, "No such file"),
    ],
)
def test_audit_without_a_database_is_reported(tmp_path: Path, answer: object, reason: str) -> None:
    """An index without vulnerability data is an error."""
    path = tmp_path / "json"
    if answer is not None:
        path.write_text(json.dumps(answer))

    told = supply.lacking(path.as_uri())

    assert reason in told if reason else told == ""


def test_failed_audit_fails(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """No package counts as audited."""
    monkeypatch.setattr(supply, "KNOWN_BAD", "file:///nowhere")

    assert supply.audit() == 2
    assert "nothing was audited" in capsys.readouterr().err


def test_sbom_has_every_package_except_stand_ins() -> None:
    """Stand-ins are empty packages."""
    text = "".join(map(supply.locked, (*supply.LOCKS, lock.ELSEWHERE)))

    assert "torch==" in text
    assert "standin" not in text
    assert all(f"\n{pin}" in f"\n{text}" for pin in lock.read_lock("lock.txt"))
