import json
from dataclasses import asdict
from typing import Any

import pytest

from benchmarks import budgets, report
from benchmarks.load import Measured
from benchmarks.machine import parse_cpu_model
from benchmarks.measurement import Round
from benchmarks.noise import Doubt, doubts, undoubted
from benchmarks.plan import QUICK
from benchmarks.process_stat import Cores
from benchmarks.summary import Summary


def floor(*, cpu_s: float = 1.0, chunks: int = 100_000) -> Measured:
    return Measured(seconds=2.0, cpu_s={"server": cpu_s}, chunks=chunks)


def loaded(name: str = "64", **of_load: Any) -> Round:
    return Round(loads={name: Measured(seconds=10.0, **of_load)})


def summary(value: float) -> Summary:
    return Summary.of([value])


def test_quiet_round_has_no_doubts():
    """The floor moves and the server waits by less than a tenth."""

    assert doubts(floor(), loaded(server_wait_s=0.9), floor(cpu_s=1.09)) == []


@pytest.mark.parametrize(
    ("done", "after", "text", "clock_only"),
    [
        (loaded(), floor(cpu_s=1.2), "CPU per chunk moved by 20%", False),
        (loaded(), floor(cpu_s=0.5, chunks=50_000), "chunks per second moved by 100%", True),
        (Round(figures={"late_p99_ms_open": 1.5}), floor(), "sent 1.5 ms late", True),
        (loaded(server_wait_s=2.0), floor(), "others held the server's core for 20%", True),
    ],
)
def test_disturbed_round_has_a_mark(done, after, text, clock_only):
    """Each disturbance has its own mark, which says whether CPU time is still valid."""

    [doubt] = doubts(floor(), done, after)
    assert text in doubt.text
    assert doubt.clock_only == clock_only


def test_servers_own_threads_are_not_a_disturbance():
    """With long prompts, the main thread waits for the tokenizer's threads."""

    assert doubts(floor(), loaded("prompt_1mb", server_wait_s=2.0), floor()) == []


def test_busy_machine_affects_rates_first():
    """A round with doubtful rates is still valid for CPU time."""

    rounds = [loaded(server_wait_s=2.0)]
    marks = [doubts(floor(), rounds[0], floor())]

    assert undoubted(rounds, marks, by_clock=True) == []
    assert undoubted(rounds, marks, by_clock=False) == rounds


def test_only_required_budgets_can_be_missed():
    """Designed budgets are goals; a required figure that is absent is missed too."""

    bad = {"cpu_us_per_chunk_64": summary(25.1), "cpu_us_besides_chat": summary(9999)}
    good = {"cpu_us_per_chunk_64": summary(24.9)}

    assert budgets.missed(bad, by_clock=False) == ["cpu_us_per_chunk_64"]
    assert budgets.missed(good, by_clock=False) == []
    assert budgets.missed({"chunks_per_s_64": summary(40_001)}, by_clock=True) == []
    assert budgets.missed({}, by_clock=True) == ["chunks_per_s_64"]


def test_table_shows_losses_like_wins():
    """Each budget next to its figure, met or not."""

    rounds = [Round({"cpu_us_per_chunk_64": each, "chunks_per_s_64": 61_000}) for each in (17, 20)]
    lines = report.table(report.summaries(rounds)).splitlines()

    [cpu] = [" ".join(line.split()) for line in lines if line.startswith("CPU per streamed")]
    [rate] = [line for line in lines if line.startswith("chunks per second")]
    assert cpu.endswith("18.5 17.0 - 20.0 us <= 25 met <= 16 MISSED")
    assert rate.endswith(">= 60,000 met")


def test_figure_of_one_round_is_in_the_report():
    """Not every round measures everything."""

    rounds = [Round({"start_up_s": 1.5}), Round({})]

    assert report.summaries(rounds) == {"start_up_s": summary(1.5)}


def test_document_has_every_round():
    """The stored data suffices to compute the medians again, and lists what was left out."""

    rounds = [Round({"start_up_s": 1.5}), Round({"start_up_s": 2.5})]
    marks = [doubts(floor(), rounds[0], floor(cpu_s=2.0)), []]
    skipped = {"tools": "refused"}
    document = report.document(rounds, marks, skipped, {"machine": {"cpu": "x"}})

    assert json.loads(json.dumps(document)) == document
    assert document["figures"]["start_up_s"] == {"median": 2.0, "low": 1.5, "high": 2.5}
    assert [len(each["doubts"]) for each in document["rounds"]] == [1, 0]
    assert document["machine"] == {"cpu": "x"}
    assert document["skipped"] == skipped


def test_remarks_name_skipped_and_doubtful_scenarios():
    marks: list[list[Doubt]] = [[], [Doubt("the floor moved", clock_only=True)]]

    assert report.remarks(marks, {"tools": "refused"}).splitlines() == [
        "skipped: tools: refused",
        "round 2: the floor moved",
    ]


def test_markdown_is_the_same_table():
    """Row by row, below its conditions."""

    found = report.summaries([Round({"cpu_us_per_chunk_64": 17.0, "idle_stream_kb": 70.0})])
    text = report.markdown(found, "a machine")

    assert text.startswith("# The gateway with the mock engine\n\na machine\n\n| figure | median |")
    assert "| memory per idle stream | 70.0 | 70.0 - 70.0 | KB |  | <= 60 MISSED |" in text


@pytest.mark.parametrize(
    ("cores", "said"), [(Cores(0, 1), "server on core 0"), (Cores(None, None), "one core only")]
)
def test_conditions_describe_the_machine_and_the_run(cores, said):
    """Pinning changes the benchmark; so do the commit and the number of rounds."""

    known = {
        "machine": {"cpu": "x", "cores": "2", "system": "Linux"},
        "versions": {"python": "3"},
        "cores": asdict(cores),
        "plan": asdict(QUICK),
        "commit": "abc",
        "date": "2030-01-01",
    }
    text = report.conditions(known)

    assert said in text
    assert "commit abc, 2030-01-01" in text
    assert f"{QUICK.rounds} rounds" in text


def test_cpu_model_is_read():
    """The kernel's name for it; on other systems at least the architecture."""

    assert parse_cpu_model("processor\t: 0\nmodel name\t: A CPU @ 2 GHz\n") == "A CPU @ 2 GHz"
    assert parse_cpu_model("processor: 0\n") != ""
