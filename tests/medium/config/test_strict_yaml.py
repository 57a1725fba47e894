"""The YAML loader does not depend on changes by other libraries."""

import datetime
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from openai_frontend.config import strict_yaml


def test_later_changes_to_pyyaml_have_no_effect(monkeypatch: pytest.MonkeyPatch):
    """lm-format-enforcer turns dates into text in the table shared by all PyYAML loaders."""
    for loader in (yaml.SafeLoader, yaml.CSafeLoader):
        monkeypatch.setattr(loader, "yaml_implicit_resolvers", {})
        monkeypatch.setitem(
            loader.yaml_constructors,
            "tag:yaml.org,2002:timestamp",
            loader.yaml_constructors["tag:yaml.org,2002:str"],
        )

    assert strict_yaml.parse("day: 2026-01-02") == {"day": datetime.date(2026, 1, 2)}


def test_earlier_changes_to_pyyaml_have_no_effect(tmp_path: Path):
    """The module is imported after the other library."""
    script = tmp_path / "late.py"
    script.write_text(
        "import yaml\n"
        "table = yaml.SafeLoader.yaml_constructors\n"
        "table['tag:yaml.org,2002:timestamp'] = table['tag:yaml.org,2002:str']\n"
        "assert yaml.safe_load('2026-01-02') == '2026-01-02'\n"
        "from openai_frontend.config import strict_yaml\n"
        "print(repr(strict_yaml.parse('2026-01-02')))\n"
    )

    shown = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)

    assert (shown.stdout, shown.stderr) == ("datetime.date(2026, 1, 2)\n", "")
