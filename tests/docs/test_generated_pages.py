"""Generated pages, tables and pictures of the documentation are current."""

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from openai_frontend.cli import init_repo, main
from openai_frontend.cli.check.report import Report
from openai_frontend.cli.init_repo.options import KINDS
from openai_frontend.cli.top import view
from openai_frontend.config.loader import load
from openai_frontend.config.model_options import ModelOptions
from openai_frontend.metrics import catalog
from openai_frontend.metrics import load as load_metrics
from openai_frontend.metrics.gateway import GatewayMetrics
from openai_frontend.metrics.load import ServerLoad
from scripts import (
    generate_backends_docs,
    generate_connect_docs,
    generate_dashboard_image,
    generate_flags_docs,
    generate_metrics_docs,
    generate_settings_docs,
    generate_tools_docs,
    generate_top_image,
    vllm_versions,
)
from tests.fast.metrics.test_vllm import DEMO
from tests.gateway_process import ROOT

GENERATED: dict[Path, Callable[[], str]] = {
    generate_backends_docs.PAGE: generate_backends_docs.page,
    generate_connect_docs.PAGE: generate_connect_docs.page,
    generate_flags_docs.PAGE: generate_flags_docs.page,
    generate_metrics_docs.PAGE: generate_metrics_docs.page,
    generate_settings_docs.PAGE: generate_settings_docs.page,
    vllm_versions.PAGE: vllm_versions.page,
    generate_dashboard_image.IMAGE: generate_dashboard_image.page,
}
MODELS = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
REPOSITORIES = (ROOT / "docs" / "repositories.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.name)
def test_page_is_current(path: Path) -> None:
    """Its generator, `python -m scripts.NAME`, would change nothing."""
    assert path.read_text(encoding="utf-8") == GENERATED[path]()


@pytest.mark.slow  # loads a tokenizer and its templates
def test_output_of_check_is_current(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`openai-frontend check demo` prints the block in docs/tools.md."""
    monkeypatch.chdir(ROOT)
    assert main(["check", "demo"]) == 0

    shown = f"$ openai-frontend check demo\n{capsys.readouterr().out}```\n"
    assert shown in generate_tools_docs.PAGE.read_text(encoding="utf-8")


def test_picture_of_top_has_every_column() -> None:
    """`python -m scripts.generate_top_image` draws it again."""
    image = generate_top_image.IMAGE.read_text(encoding="utf-8").replace("&#160;", " ")

    columns = [column.heading for column in view._COLUMNS]
    assert [heading for heading in columns if heading not in image] == []


def test_catalog_has_what_the_gateway_reports() -> None:
    """The gateway reports exactly the metrics of the catalog, with their types."""
    idle = ServerLoad(running=0, waiting=0, kv_cache_usage=0)
    reported = [*GatewayMetrics().registry.collect(), *load_metrics.families(idle, [DEMO])]
    families = {family.name: family.type for family in reported}

    assert families == {family.name: family.kind for family in catalog.ALL}


def test_page_of_models_has_every_option() -> None:
    """With the descriptions and the order of the code."""
    _, _, table = MODELS.partition("| option | what it is |\n|---|---|\n")

    assert table.partition("\n\n")[0].splitlines() == [
        f"| `{name}` | {field.description} |" for name, field in ModelOptions.model_fields.items()
    ]


def test_examples_of_model_options_are_valid() -> None:
    """The example files and the example setting."""
    examples = [block.partition("```")[0] for block in MODELS.split("```yaml\n")[1:]]
    of_file, of_settings, on_demand = map(yaml.safe_load, examples)
    settings = load(flags=of_settings)

    assert ModelOptions.model_validate(of_file).aliases == ("gpt-4o-mini", "org/llama")
    assert settings.model_option["llama"].aliases == ("gpt-4o-mini", "org/llama")
    assert settings.model_option["*"].max_output_tokens == 4096
    assert ModelOptions.model_validate(on_demand).load_on_demand


def test_page_of_repositories_has_every_option_and_line() -> None:
    """The options and kinds of `init-repo`, and the lines of `check` that are not only in JSON."""
    options = argparse.ArgumentParser(add_help=False)
    init_repo.add_arguments(options)
    lines = {each.name.replace("_", " ") for each in dataclasses.fields(Report)}
    lines -= {"no endpoint", "expose", "model"}
    named = [
        *(f"`{flag}" for flag in options._option_string_actions if flag.startswith("--")),
        *(f"| `{kind}`" for kind in KINDS),
        *(f"`{line}`" for line in lines),
    ]

    assert len(named) > 20
    assert [each for each in named if each not in REPOSITORIES] == []
