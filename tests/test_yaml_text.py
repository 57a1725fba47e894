"""YAML as plain values."""

import datetime

import pytest
import yaml

from openai_frontend import yaml_text


def test_other_libraries_do_not_change_what_words_mean(monkeypatch: pytest.MonkeyPatch):
    """Some take dates out of the table that all of PyYAML's loaders share."""
    for loader in (yaml.SafeLoader, yaml.CSafeLoader):
        monkeypatch.setattr(loader, "yaml_implicit_resolvers", {})

    assert yaml_text.parse("day: 2026-01-02") == {"day": datetime.date(2026, 1, 2)}
