"""The package's names and figures, read from its sources."""

import ast
from collections import defaultdict

import pytest

from openai_frontend.config.loader import options
from scripts.figures import PACKAGE, ROOT, change_figures, import_figures, size_figures

# Lower a number with the change that lowers it.
MOST_FILES = {
    "request field": 8,
    "endpoint": 13,
    "model ability": 23,
    "tensor contract": 6,
    "parser family": 2,
    "metric": 3,
    "setting": 2,
}


def test_no_two_classes_share_a_name() -> None:
    """Unless all but one are protocols, which the other one implements."""
    classes = defaultdict(list)
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not is_protocol(node):
                classes[node.name].append(str(path.relative_to(ROOT)))

    assert {name: paths for name, paths in classes.items() if len(paths) > 1} == {}


def is_protocol(node: ast.ClassDef) -> bool:
    return any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)


@pytest.mark.slow
def test_no_import_cycles() -> None:
    figures = {**size_figures(), **import_figures()}

    assert figures["import cycles"] == "0"


def test_examples_of_changes_appear_in_as_few_files_as_before() -> None:
    """docs/extending.md lists the files by hand. More of them make every later change dearer."""
    assert change_figures() == MOST_FILES


def test_settings_are_at_most_100() -> None:
    """A new one replaces another, or is an option of the core or an engine argument."""
    assert len(options()) <= 100
