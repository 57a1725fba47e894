"""Buckets are checked before anything starts."""

import importlib.util
from pathlib import Path

import pytest

from openai_frontend.cli.command import main


@pytest.mark.parametrize("command", ["serve", "check"])
def test_without_the_extra_its_name_is_shown(monkeypatch, capsys, command):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    assert main([command, "--model-repository", "gs://bucket/models"]) == 2
    assert capsys.readouterr().err == (
        "openai-frontend: model_repository: gs://bucket/models: obstore is not installed; "
        "install openai-frontend[object-storage]\n"
    )


def test_unusable_credentials_file(monkeypatch, capsys, tmp_path: Path):
    monkeypatch.setenv("TRITON_CLOUD_CREDENTIAL_PATH", str(tmp_path / "cloud.json"))

    assert main(["check", "--model-repository", "s3://bucket"]) == 1
    assert capsys.readouterr().err == (
        f"openai-frontend: s3://bucket: TRITON_CLOUD_CREDENTIAL_PATH: {tmp_path}/cloud.json: "
        "No such file or directory\n"
    )


def test_bucket_is_no_model(capsys):
    """`serve MODEL` names the flag for it."""
    assert main(["serve", "s3://bucket/models"]) == 2
    assert "openai-frontend serve --model-repository s3://bucket/models" in capsys.readouterr().err
