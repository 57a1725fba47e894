"""The Grafana dashboard and the alerts use only metrics and labels that /metrics has."""

import json
import re
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import yaml

from openai_frontend.generation import UsageCounter
from openai_frontend.metrics import vllm as vllm_metrics
from openai_frontend.metrics.gateway import GatewayMetrics, GenerationLabels
from openai_frontend.metrics.vllm import FROM_ENGINE, VLLMModel
from scripts.generate_dashboard_image import SERIES

ROOT = Path(__file__).parents[2]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/openai-frontend.json").read_text())
ALERTS: dict[str, Any] = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]

METRIC = re.compile(r"\b(?:openai_frontend_|vllm:|nv_)\w+")
SELECTED = re.compile(r"((?:openai_frontend_|vllm:|nv_)\w+)\{([^}]*)\}")

# Triton's own, with its labels (docs/user_guide/metrics.md of triton-inference-server/server)
TRITON = {"nv_inference_pending_request_count": {"model", "version"}}

# TensorRT-LLM's, passed through unchanged (custom_metrics_reporter.cc of NVIDIA/TensorRT-LLM)
TENSORRT_LLM = {
    "nv_trt_llm_request_metrics": {"model", "version", "request_type"},
    "nv_trt_llm_runtime_memory_metrics": {"model", "version", "memory_type"},
    "nv_trt_llm_kv_cache_block_metrics": {"model", "version", "kv_cache_block_type"},
}


def known() -> dict[str, set[str]]:
    """Every sample that /metrics can have, with its label names."""
    metrics = GatewayMetrics()
    metrics.answered("/v1/models", "m", 200, 0.1)
    metrics.rejected("m", "queue_full")
    metrics.audio.decoded("m", 9, 1.0, 0.1)
    metrics.images.read("m", [])
    metrics.generations_of(GenerationLabels("m", "1")).begin(UsageCounter()).end()
    model = VLLMModel(
        model="m", version="1",
        gauges=vllm_metrics.vllm_gauges(
            {"running": 1, "waiting": 1} | dict.fromkeys(map(attrgetter("name"), FROM_ENGINE), 0)
        ),
        samples=[
            (
                "openai_frontend_media_stage_seconds_bucket",
                {"kind": "image", "stage": "decode", "le": "1"},
                0,
            )
        ],
    )  # fmt: skip
    own = [*metrics.registry.collect(), *vllm_metrics.families(metrics.registry, [model])]
    samples = {sample.name: set(sample.labels) for family in own for sample in family.samples}
    return {**samples, **TRITON, **TENSORRT_LLM}


def all_panels() -> Iterator[dict[str, Any]]:
    """Those of closed rows too."""
    for panel in DASHBOARD["panels"]:
        yield panel
        yield from panel.get("panels", ())


def panels() -> Iterator[tuple[str, str]]:
    for panel in all_panels():
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


EXPRESSIONS = [*panels(), *((rule["alert"], rule["expr"]) for rule in RULES)]


def test_metrics_exist():
    """A misspelt or renamed metric fails the test."""
    names = known().keys()

    for title, expression in EXPRESSIONS:
        used = set(METRIC.findall(expression))
        assert used, title
        assert used <= names, title


def test_labels_exist():
    """Selectors and groupings use labels of the metric; Prometheus adds `instance`."""
    labels = known()
    for title, expression in EXPRESSIONS:
        for metric, selectors in SELECTED.findall(expression):
            selected = set(re.findall(r"(\w+)(?:=~|!~|!=|=)", selectors))
            assert selected <= labels[metric] | {"instance"}, title
        grouped = {
            label.strip()
            for labels_by in re.findall(r"\bby \(([^)]*)\)", expression)
            for label in labels_by.split(",")
        }
        of_all = [labels[metric] for metric in METRIC.findall(expression)]
        assert all(grouped <= each | {"instance"} for each in of_all), title


def test_dashboard_begins_with_numbers_in_a_row_of_their_own():
    first, *rest = DASHBOARD["panels"]
    rows = [place for place, panel in enumerate(rest) if panel["type"] == "row"]

    assert first["type"] == "row"
    assert {panel["type"] for panel in rest[: rows[0]]} == {"stat"}
    assert {panel["type"] for panel in rest[rows[0] :]} == {"row", "timeseries"}


def test_each_panel_has_a_description():
    """The information sign of a panel shows it."""
    panels = [panel for panel in all_panels() if panel["type"] != "row"]

    assert len(panels) > 20
    assert [panel["title"] for panel in panels if not panel.get("description")] == []


def test_picture_has_a_line_in_each_open_panel():
    """What a user sees of vLLM: panels of other engines are in a closed row."""
    series = json.loads(SERIES.read_text())
    titles = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] != "row"]

    assert list(series) == titles
    for title, lines in series.items():
        assert any(value is not None for line in lines for value in line["values"]), title
    assert [each["title"] for each in all_panels() if each.get("collapsed")] == ["TensorRT-LLM"]


def test_alerts_are_documented():
    """docs/operations.md explains what to do about each."""
    guide = (ROOT / "docs/operations.md").read_text()

    assert [rule["alert"] for rule in RULES if f"`{rule['alert']}`" not in guide] == []


def test_runbooks_are_rows_of_the_guide():
    """Each alert links to its own row, at an address that an operator can replace."""
    guide = (ROOT / "docs/operations.md").read_text()

    for rule in RULES:
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert page == "https://docs.example.com/operations.html"
        assert f'<a id="{anchor}"></a>`{rule["alert"]}`' in guide


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alerts_are_complete(rule):
    """Each has a delay, a severity and a summary."""
    assert re.fullmatch(r"\d+m", rule["for"])
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert "{{ $labels.instance }}" in rule["annotations"]["summary"]
