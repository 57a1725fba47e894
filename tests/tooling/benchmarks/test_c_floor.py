import pytest

from benchmarks import c_floor


def test_a_machine_without_compiler_says_so(tmp_path, monkeypatch):
    """In a sentence that names what was looked for."""

    monkeypatch.setenv("CC", "no-such-compiler")

    with pytest.raises(c_floor.NoCompiler, match="'no-such-compiler' is not found"):
        c_floor.build(tmp_path)
