"""The tests of the API, through each router. `--long` runs all of them, with engines."""

import re
import subprocess
import sys

import pytest

from tests.gateway_process import ROOT
from tests.scale import through

pytestmark = pytest.mark.slow

SHORT = ("tests/api/conformance", "tests/api/test_limits.py", "-m", "not engine")
# smg knows one model of each gateway, and the gateway with engines has several.
LONG = {"smg": ("tests/api", "-m", "not engine")}
# Not through a router: the conformance page is compared with the tests of a complete run, and the
# gateway logs examples with its own address.
DESELECTED = (
    "--deselect=tests/api/conformance/test_page.py",
    "--deselect=tests/api/test_default_repository.py::test_ready_message_has_an_example_of_each_endpoint",
)


@pytest.mark.parametrize("router", through.DIFFERENCES)
def test_api_behaves_the_same_through_a_router(router, request):
    """Besides the differences in `tests/scale/through.py`, each of which must be there."""
    selected = LONG.get(router, ("tests/api",)) if request.config.getoption("long") else SHORT
    command = ["-m", "pytest", "-n", "0", "-q", "-p", "tests.scale.through", f"--through={router}"]
    done = subprocess.run(
        [sys.executable, *command, *selected, *DESELECTED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-8000:]
    [passed] = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) > 250
