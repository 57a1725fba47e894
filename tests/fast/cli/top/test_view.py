"""The output of `top` on terminals of any size."""

import io

import pytest
from rich.console import Console

from openai_frontend.cli.top.rates import GatewayStats, ModelStats
from openai_frontend.cli.top.view import view


def shown(names: list[str], width: int, height: int | None = None, **figures: float) -> list[str]:
    """The lines for a gateway with these models."""
    stats = GatewayStats(
        status="ready",
        requests_per_s=1.0,
        requests_in_progress=2,
        streams_open=1,
        tokens_per_write=1.5,
        loop_lag_p99_s=0.001,
        rejected_per_s=0.0,
        errors_per_s=0.0,
        models=tuple(
            ModelStats(model=name, state="ready", running=1234, **figures) for name in names
        ),
    )
    written = io.StringIO()
    console = Console(file=written, width=width, markup=False, highlight=False, emoji=False)
    console.print(view(stats, "http://127.0.0.1:9000", width, height))
    return [line.rstrip() for line in written.getvalue().splitlines()]


@pytest.mark.parametrize("width", range(1, 140, 7))
def test_output_fits_the_terminal(width: int) -> None:
    """No line is longer than the terminal is wide, and no more lines than it has."""
    names = [f"organisation/model-{number}" for number in range(9)]
    lines = shown(names, width, 9)

    assert len(lines) == 9
    assert max(map(len, lines)) <= width
    assert lines[-1] == "and 5 more"[:width].rstrip()


def test_narrow_terminal_keeps_running_requests_and_tokens() -> None:
    """They stay longest, and the beginning of the model's name stays readable."""
    heading, row = shown(["organisation/model"], 44)[-2:]

    assert heading.split() == ["model", "running", "tokens/s", "state"]
    assert row.startswith("organisati")
    assert row.endswith("ready")


def test_wide_terminal_shows_all_columns() -> None:
    """A model without requests has a dash in each column that needs one."""
    heading, row = shown(["demo"], 150)[-2:]

    assert "kv cache" in heading
    assert row.split() == ["demo", "1,234", *["-"] * 10, "ready"]


def test_columns_of_media_need_a_model_with_media() -> None:
    """A gateway for text has none of them."""
    assert "images/s" not in shown(["demo"], 200)[-2]
    heading, row = shown(["sees"], 200, images_per_s=2.5, media_hit_rate=0.75)[-2:]

    assert heading.split()[-5:] == ["rejected/s", "images/s", "media", "hits", "state"]
    assert row.split()[-4:] == ["2.5", "75", "%", "ready"]


def test_names_are_not_markup() -> None:
    """A model's name that looks like markup is shown as it is."""
    assert shown(["[red]demo[/red]"], 140)[-1].startswith("[red]demo[/red]")
