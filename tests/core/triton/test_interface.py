"""Each row of triton_interface, provoked with the core that is in use.

OPENAI_FRONTEND_TRITON_LIBRARY selects another core than the wheel's.
"""

import asyncio
import re
import subprocess
import sys
from typing import Any

import psutil
import pytest

from openai_frontend import errors
from openai_frontend.runtime import triton_interface
from openai_frontend.triton import Server, library, python_backend
from openai_frontend.triton.start_log import StartLog
from scripts.setup import lock
from tests import mock_models
from tests.core.triton import python_models
from tests.gateway_process import ROOT

QUEUE = """
dynamic_batching { default_queue_policy { max_queue_size: 1 %s } }
max_batch_size: 1
instance_group { count: 1 kind: KIND_CPU }
"""
SLOW = "import time\ndef answer(given):\n    time.sleep(1)\n    return given"
# In a process of its own: the wheel's core does not stop without the stub
KILLED_STUB = """
import asyncio, os, sys
from pathlib import Path
from openai_frontend.errors import InferenceFailed, ModelUnavailable
from openai_frontend.triton import Options, Server
from openai_frontend.runtime.triton_interface import STUB_INSTANCE_AT
from tests.core.triton.test_interface import infer, stubs_of_this_process

async def main():
    path, repository = map(Path, sys.argv[1:])
    server = Server(Options(library=path, model_repositories=[repository]))
    await server.start()
    stubs = {each.cmdline()[STUB_INSTANCE_AT]: each for each in stubs_of_this_process()}
    instance, stub = next(each for each in stubs.items() if each[0].startswith("second"))
    print(instance)
    stub.kill()
    try:
        await infer(server, "second")
    except InferenceFailed as error:
        print(error.message)
    server.set_stubs({instance: (stub.pid, ["second", "ensemble"])})
    try:
        await infer(server, "ensemble", given="QUESTION")
    except ModelUnavailable as error:
        print(error.message)
    print(*server.unhealthy_stubs(), flush=True)
    for each in stubs.values():
        each.kill()
    os._exit(0)

asyncio.run(main())
"""
TEXT = ("BYTES", (1,), b"\1\0\0\0a")


def write_slow(repository: Any, policy: str = "") -> None:
    """A model that takes a second for a request, and has one request in its queue at most."""
    python_models.write(repository, "slow", answer=SLOW)
    config = repository / "slow" / "config.pbtxt"
    config.write_text(config.read_text() + QUEUE % policy)


async def infer(
    server: Server, name: str, shape: tuple[int, ...] = (1,), given: str = "IN"
) -> None:
    async for _ in server.infer(name, {given: (TEXT[0], shape, TEXT[2])}):
        pass


async def refusals(server: Server) -> list[Any]:
    """The exceptions of requests that arrive while the model computes another one."""
    calls = [asyncio.create_task(infer(server, "slow", (1, 1)))]
    await asyncio.sleep(0.3)
    calls += [asyncio.create_task(infer(server, "slow", (1, 1))) for _ in range(4)]
    return [each for each in await asyncio.gather(*calls, return_exceptions=True) if each]


def the_stub() -> psutil.Process:
    [stub] = stubs_of_this_process()
    return stub


def stubs_of_this_process() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if is_stub(each)]


def is_stub(process: psutil.Process) -> bool:
    return process.status() != psutil.STATUS_ZOMBIE and process.cmdline()[0].endswith(
        triton_interface.STUB
    )


def test_wheel_is_the_locked_one():
    """A user is told to install what was tested."""
    assert triton_interface.WHEEL == lock.TRITON_CORE


def test_folders_of_the_server():
    """Beside the library are the Python backend and a stub for this version of Python."""
    server = library.server_folder(library.find())
    backend = server / triton_interface.BACKENDS / triton_interface.PYTHON_BACKEND
    stub = server / triton_interface.STUBS / python_backend.VERSION / triton_interface.STUB

    assert all((backend / name).is_file() for name in triton_interface.PYTHON_BACKEND_FILES)
    assert stub.is_file()


@pytest.mark.slow
async def test_arguments_of_a_stub(repository, start_server):
    """They name the model's instance: its group, and a number."""
    python_models.write(repository, "echo")
    server = await start_server()
    named = the_stub().cmdline()[triton_interface.STUB_INSTANCE_AT]
    [group] = server.model_config("echo")["instance_group"]

    instance = triton_interface.STUB_INSTANCE.fullmatch(named)
    assert instance is not None
    assert instance["group"] == group["name"]


@pytest.mark.slow
def test_error_of_a_killed_stub(repository):
    """It names the instance, as the stub's arguments do, and an ensemble puts its own name before
    it.
    """
    for name in ("first", "second"):
        python_models.write(repository, name)
    python_models.write_ensemble(repository)
    command = [sys.executable, "-c", KILLED_STUB, library.find(), repository]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    instance, *said, unhealthy = done.stdout.splitlines()

    message = triton_interface.UNHEALTHY_STUB.format(instance=instance)
    of_ensemble = triton_interface.IN_ENSEMBLE.format(ensemble="ensemble") + message
    assert said == [message, of_ensemble]
    assert unhealthy == instance


@pytest.mark.parametrize("text", [triton_interface.LOCKED_STUB, triton_interface.FULL_STUB])
def test_error_of_a_locked_or_full_stub(text):
    """The text is in the backend's library; the stub holds its lock for microseconds at a time,
    too short to provoke the error.
    """
    server = library.server_folder(library.find())
    backend = server / triton_interface.BACKENDS / triton_interface.PYTHON_BACKEND

    built = (backend / triton_interface.PYTHON_BACKEND_FILES[0]).read_bytes()
    assert text.encode() in built


@pytest.mark.slow
async def test_full_queue(repository, start_server):
    """The request that does not fit fails with it, and becomes an error of its own type."""
    write_slow(repository)
    server = await start_server()

    refused = await refusals(server)

    assert {type(each) for each in refused} == {errors.QueueFull}
    assert triton_interface.QUEUE_FULL[1:] in refused[0].message


async def test_unreadable_config(repository, start_server):
    """A config that is not JSON, or that has an unknown field."""
    mock_models.write(repository, "mock")
    server = await start_server()

    for config in ("{", '{"nothing": 1}'):
        with pytest.raises(errors.GatewayError) as refused:
            await server.load_model("mock", config=config)
        assert refused.value.message.endswith(triton_interface.UNREADABLE_CONFIG)


@pytest.mark.slow
async def test_timeout_in_the_queue(repository, start_server):
    """The same for a request that waited too long."""
    write_slow(repository, "default_timeout_microseconds: 100000")
    server = await start_server()

    late = [each for each in await refusals(server) if isinstance(each, errors.QueueTimeout)]

    assert triton_interface.QUEUE_TIMEOUT[1:] in late[0].message


@pytest.mark.parametrize("python_based", [False, True])
async def test_missing_backend(repository, start_server, tmp_path, monkeypatch, python_based):
    """The reason names the backend, or the Python backend of a backend that is a program."""
    monkeypatch.setattr(python_backend, "has_stubs", lambda _: False)
    python_models.write_backend(tmp_path / "backends", repository)
    if not python_based:
        (tmp_path / "backends" / "own" / "model.py").unlink()
    server = await start_server(backend_directory=tmp_path / "backends")

    [entry] = server.model_index()
    missing = triton_interface.MISSING_BACKEND.search(entry.reason)
    assert missing is not None, entry.reason
    name = "python" if python_based else "own"
    assert missing[1] == name
    assert entry.reason.endswith(
        f": backend '{name}' is not installed in {tmp_path}/backends; install it there, or set"
        " backend_directory to its folder"
    )


async def test_unreadable_model(repository, start_server):
    """Its reason, which only the log has, becomes the reason in the index."""
    python_models.write(repository, "echo")
    (repository / "echo" / "config.pbtxt").write_text("no config")
    server = await start_server()

    [entry] = server.model_index()
    assert entry.reason


@pytest.mark.parametrize("log_format", ["default", "ISO8601"])
async def test_log_lines(repository, start_server, tmp_path, log_format):
    """Each line that the core logs begins a record with its level, in both of its formats."""
    log = tmp_path / "log"
    python_models.write(repository, "broken", answer="raise ValueError('no weights')")
    texts = {"log-file": [str(log)], "log-info": ["true"], "log-format": [log_format]}
    server = await start_server(triton_option=texts)
    await server.stop()

    lines = log.read_text().splitlines()
    heads = [each for line in lines if (each := triton_interface.LOG_LINE.fullmatch(line))]
    assert {each["a"] or each["b"] for each in heads} >= {"I", "E"}
    found = StartLog()
    found.lines = lines
    assert [each for each in found.errors if "failed to load 'broken'" in each]


@pytest.mark.slow
async def test_lines_about_loads(repository, start_server, tmp_path):
    """The begin and the end of each load, and in between the Python backend's line."""
    log = tmp_path / "log"
    python_models.write(repository, "echo")
    python_models.write(repository, "broken", answer="raise ValueError('no weights')")
    await start_server(triton_option={"log-file": [str(log)], "log-info": ["true"]})

    lines = log.read_text().splitlines()
    heads = [each for line in lines if (each := triton_interface.LOG_LINE.fullmatch(line))]
    for row in (triton_interface.MODEL_LOADS, triton_interface.MODEL_LOAD_ENDED):
        found = {match[1] for head in heads if (match := row.fullmatch(head["text"]))}
        assert found == {"echo", "broken"}
    stubs = [triton_interface.STUB_STARTS.fullmatch(line) for line in lines]
    assert "echo" in [match[1] for match in stubs if match is not None]


@pytest.mark.slow
async def test_start_without_a_gpu_has_no_warnings(repository, start_server, tmp_path):
    """The known lines are all that the core complains about."""
    log = tmp_path / "log"
    python_models.write(repository, "echo")
    await start_server(triton_option={"log-file": [str(log)]})

    heads = map(triton_interface.LOG_LINE.fullmatch, log.read_text().splitlines())
    assert not [each.string for each in heads if each and {"W", "E"} & {*each.group("a", "b")}]


def test_evicted_lora():
    """As TensorRT-LLM words it; it needs a GPU, so this text was recorded."""
    text = (
        "in ensemble 'ensemble', LoRA task 7 not found in cache. "
        "Please send LoRA weights with request"
    )

    found = triton_interface.LORA_EVICTED.search(text)
    assert found is not None
    assert found["id"] == "7"


def test_every_row_has_a_test(request):
    """A row that is added must be named here."""
    rows = {name for name in vars(triton_interface) if re.fullmatch(r"[A-Z_]+", name)}
    source = request.path.read_text()

    indirect = {"IMAGE_SERVER", "IMAGE_LIBRARY", "WHEEL_FOLDER", "WHEEL_SERVER", "LIBRARY_PATTERN"}
    indirect |= {"HARMLESS_WITHOUT_GPU", "UNREADABLE_MODEL", "CACHES", "REPO_AGENTS"}
    assert rows - indirect <= set(re.findall(r"triton_interface\.([A-Z_]+)", source))
