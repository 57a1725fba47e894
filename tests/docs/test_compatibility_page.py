"""The results of `make compat` in docs/compatibility.md."""

from pathlib import Path

from scripts.vllm_versions import counted, table


def test_results_in_the_table() -> None:
    """Newest first; failed and skipped tests show, and a version without tests says so."""
    rows = table(
        {
            "0.9.2": {"lacks": {"engine": "vllm.v1 does not exist"}},
            "0.32.0": {"lacks": {}, "tests": {"full": {"passed": 9, "failed": 1, "skipped": 2}}},
            "0.31.0": {"lacks": {"step_loop": "x"}, "tests": {}},
        }
    ).splitlines()[2:]

    assert rows == [
        "| 0.32.0 | everything | nothing | full: 9 passed, 1 failed, 2 skipped |",
        "| 0.31.0 | everything else | `step_loop` | names only |",
        "| 0.9.2 | nothing | `engine` | names only |",
    ]


def test_counts_of_a_report(tmp_path: Path) -> None:
    """Errors in fixtures count as failures."""
    report = tmp_path / "tests.xml"
    report.write_text(
        '<testsuites><testsuite tests="7" failures="1" errors="2" skipped="1"/></testsuites>'
    )

    assert counted(report) == {"passed": 3, "failed": 3, "skipped": 1}
