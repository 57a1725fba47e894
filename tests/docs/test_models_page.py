"""docs/models.md lists every option of a model."""

from pathlib import Path

import yaml

from openai_frontend.config.loader import load
from openai_frontend.config.model_options import ModelOptions

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
EXAMPLES = [block.partition("```")[0] for block in PAGE.split("```yaml\n")[1:]]


def test_page_has_every_option() -> None:
    """With the descriptions and the order of the code."""
    _, _, table = PAGE.partition("| option | what it is |\n|---|---|\n")
    rows = table.partition("\n\n")[0].splitlines()

    assert rows == [
        f"| `{name}` | {field.description} |" for name, field in ModelOptions.model_fields.items()
    ]


def test_examples_are_valid() -> None:
    """The example files and the example setting."""
    of_file, of_settings, on_demand = (yaml.safe_load(block) for block in EXAMPLES)
    settings = load(flags=of_settings)

    assert ModelOptions.model_validate(of_file).aliases == ("gpt-4o-mini", "org/llama")
    assert settings.model_option["llama"].aliases == ("gpt-4o-mini", "org/llama")
    assert settings.model_option["*"].max_output_tokens == 4096
    assert ModelOptions.model_validate(on_demand).load_on_demand
