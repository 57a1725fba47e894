import json

from benchmarks import results


def test_run_is_stored_as_document_and_table(tmp_path):
    """In a folder that need not exist yet."""

    document = {"figures": {"a": 1.5}}
    results.store(tmp_path / "results", "mock", document, "# A table\n")

    assert json.loads((tmp_path / "results" / "mock.json").read_text()) == document
    assert (tmp_path / "results" / "mock.md").read_text() == "# A table\n"
