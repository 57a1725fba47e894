"""No route starts a program or a process, from Python, the core or a library.

This gateway process runs with tests/resilience/faults/world.c, which replaces the C library's
functions that start processes. tests/security/test_no_exec.py covers what Python can see.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from openai_frontend.app import create_app
from openai_frontend.config.settings import Settings
from openai_frontend.routers.examples import EXAMPLES
from openai_frontend.routers.routing import all_routes
from openai_frontend.triton import Options, Server
from tests.api.routers.mock_gateway import RawResponse
from tests.resilience.faults.world import World
from tests.security.guarded import Guarded, guarded_gateway

VALUES = {
    "version": "1", "rest": "status", "repository": "models", "action": "load", "region": "x",
    "name": "page.js",
}  # fmt: skip
EXPLICIT = "--model-control-mode=explicit", "--load-model=*"
# The example has other tensors or adapters that do not exist, needs a model that speaks,
# classifies, moderates, pools tokens or sleeps, or is a form with a file: the first file starts the
# process that decodes audio.
REFUSED = (
    "/infer", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/score",
    "/audio/speech", "/audio/transcriptions", "/audio/translations",
    "/classify", "/moderations", "/pooling", "/embed_sparse", "/sleep", "/wake", "/wake_up",
    "/is_sleeping",
)  # fmt: skip
NATIVE = "import ctypes, os; c = ctypes.CDLL(None); "
LIST = "a = (ctypes.c_char_p * 2)(b'/bin/true', None); "
SPAWN = "(ctypes.byref(ctypes.c_int()), b'/bin/true', None, None, a, None)"
STARTS = {
    "import subprocess; subprocess.run(['/bin/true'])": "/bin/true",
    "import os; os.posix_spawn('/bin/true', ['true'], {})": "posix_spawn /bin/true",
    "import os; os.fork() or os._exit(0)": "fork ",
    "import os; os.forkpty()[0] or os._exit(0)": "forkpty ",
    f"{NATIVE}c.system(b'true')": "system true",
    f"{NATIVE}c.popen(b'true', b'r')": "popen true",
    f"{NATIVE}c.vfork() or os._exit(0)": "vfork ",
    f"{NATIVE}c.daemon(1, 1)": "daemon ",
    f"{NATIVE}c.execl(b'/bin/true', b'true', None)": "execve /bin/true",
    f"{NATIVE}c.execle(b'/bin/true', b'true', None, None)": "execve /bin/true",
    f"{NATIVE}c.execlp(b'true', b'true', None)": "execvpe true",
    f"{NATIVE}{LIST}c.execv(b'/bin/true', a)": "execv /bin/true",
    f"{NATIVE}{LIST}c.execvp(b'true', a)": "execvp true",
    f"{NATIVE}{LIST}c.execvpe(b'true', a, None)": "execvpe true",
    f"{NATIVE}{LIST}c.execveat(-100, b'/bin/true', a, None, 0)": "execveat /bin/true",
    f"{NATIVE}{LIST}c.fexecve(os.open('/bin/true', 0), a, None)": "fexecve /bin/true",
    f"{NATIVE}{LIST}c.posix_spawn{SPAWN}": "posix_spawn /bin/true",
    f"{NATIVE}{LIST}c.posix_spawnp{SPAWN}": "posix_spawnp /bin/true",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def gateway(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("started")
    with world.within(), guarded_gateway(folder, *EXPLICIT) as started:
        yield started


def requests() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield method, path and body for every route and every example of it in the document."""
    app = create_app(Settings(enable_model_management=True), Server(Options(model_repositories=[])))
    routes: list[Any] = all_routes(app)  # each has `path` and `methods`
    # The routes that unload the model and load it again come last.
    for route in sorted(routes, key=lambda each: ("load" in each.path, "unload" not in each.path)):
        spelled = route.path.replace(":path}", "}")
        name = spelled.replace("/versions/{version}", "")
        examples = EXAMPLES.get("/v1/chat/completions" if name == "/invocations" else name, {})
        path = spelled.format(id="mock", model="mock", **VALUES)
        for method in sorted(route.methods):
            bodies = [each.body("mock") for each in examples.values()] or [{}]
            yield from ((method, path, body) for body in bodies)


def ask(gateway: Guarded, method: str, path: str, body: dict[str, Any]) -> RawResponse:
    sent = json.dumps(body).encode() if method == "POST" else b""
    return gateway.ask(f"{method} {path}", sent)


@pytest.mark.slow
def test_no_route_starts_a_program_or_process(gateway, world):
    """The test calls every route. Each answers 2xx, or 501 if it is not available, except those in
    REFUSED.
    """
    process = psutil.Process(gateway.process.pid)
    assert any(each.path.endswith("/world.so") for each in process.memory_maps())
    before, children = world.started(), process.children(recursive=True)

    answers = [(each[1], ask(gateway, *each).status) for each in requests()]

    assert world.started() == before
    assert process.children(recursive=True) == children
    served = [path for path, status in answers if status == 200]
    others = [path for path, status in answers if status not in (200, 204, 501)]
    assert len(served) > 50
    assert [path for path in others if not path.endswith(REFUSED)] == []


@pytest.mark.parametrize(("code", "told"), STARTS.items())
def test_the_replaced_c_functions_record_every_start(world, code, told):
    """Each C library function that starts a program or a process is recorded."""
    before = len(world.started())
    with world.within():
        subprocess.run([sys.executable, "-S", "-c", code], check=True, timeout=120)

    assert [line for line in world.started()[before:] if told in line]
