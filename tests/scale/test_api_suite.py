"""The tests of the API, through each router. `--long` runs all of them, with engines."""

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.gateway_process import ROOT
from tests.scale import through

pytestmark = pytest.mark.slow

# The folders beside them test parts of a gateway, not its API.
API = (
    "tests/api/conformance",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "api").glob("test_*.py")),
)
SHORT = ("tests/api/conformance", "tests/api/test_limits.py", "-m", "not engine")
# smg knows one model of each gateway, and the gateway with engines has several.
LONG = {"smg": (*API, "-m", "not engine")}
# It is compared with the tests of a complete run.
DESELECTED = "--deselect=tests/api/conformance/test_page.py"


Run = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[Mapping[str, Future[Run]]]:
    """By the router of each selected test. They run at once: each waits more than it computes."""
    long = request.config.getoption("long")
    selected: list[str] = [
        str(item.callspec.params["router"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path
    ]
    with ThreadPoolExecutor(1 if long else len(selected)) as pool:  # the long form starts engines
        yield {router: pool.submit(run, router, long=long) for router in selected}
        pool.shutdown(cancel_futures=True)


def run(router: str, *, long: bool) -> Run:
    selected = LONG.get(router, API) if long else SHORT
    through_it = ["-p", "tests.scale.through", f"--through={router}", *selected, DESELECTED]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-q", "-rfE", *through_it],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("router", through.DIFFERENCES)
def test_api_behaves_the_same_through_a_router(router, runs):
    """Besides the differences in `tests/scale/through.py`, each of which must be there."""
    done = runs[router].result()

    assert done.returncode == 0, done.stdout[-8000:]
    [passed] = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) > 250
