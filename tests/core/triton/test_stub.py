import subprocess
import sys
from pathlib import Path

import pytest

from openai_frontend import triton

STUB = Path(triton.__file__).with_name("_core.pyi")


@pytest.mark.slow
def test_stub_is_current(tmp_path):
    """The committed types of the extension equal nanobind's output."""
    made = tmp_path / "_core.pyi"
    generate = ["-m", "nanobind.stubgen", "-q", "-m", "openai_frontend.triton._core", "-o", made]
    subprocess.run([sys.executable, *generate], check=True)

    assert STUB.read_text() == made.read_text()
