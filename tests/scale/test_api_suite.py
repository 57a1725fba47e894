"""The tests of the API, through each router. `--long` runs all of them, with engines."""

import re
import subprocess
import sys

import pytest

from tests.gateway_process import ROOT
from tests.scale import through

pytestmark = pytest.mark.slow

SHORT = ("tests/api/conformance", "tests/api/test_limits.py", "-m", "not engine")
LONG = ("tests/api",)
# It compares the page with the tests of a complete run.
NOT_OF_A_PART = "--deselect=tests/api/conformance/test_page.py"


@pytest.mark.parametrize("router", through.DIFFERENCES)
def test_api_behaves_the_same_through_a_router(router, request):
    """Besides the differences in `tests/scale/through.py`, each of which must be there."""
    selected = LONG if request.config.getoption("long") else SHORT
    command = ["-m", "pytest", "-n", "0", "-q", "-p", "tests.scale.through", f"--through={router}"]
    done = subprocess.run(
        [sys.executable, *command, *selected, NOT_OF_A_PART],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-8000:]
    counts = {kind: int(count) for count, kind in re.findall(r"(\d+) (\w+)", done.stdout[-200:])}
    assert counts["passed"] > 250
    assert counts.get("xfailed", 0) >= len(through.DIFFERENCES[router])
