import pytest

from benchmarks import c_floor


def test_machine_without_a_compiler_is_reported(tmp_path, monkeypatch):
    """One sentence names the compilers that were tried."""

    monkeypatch.setenv("CC", "no-such-compiler")

    with pytest.raises(c_floor.NoCompiler, match="'no-such-compiler' is not found"):
        c_floor.build(tmp_path)
