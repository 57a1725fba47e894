"""Python models of a pip installation run in the gateway's environment, or fail with the reason."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from openai_frontend.runtime.triton_interface import STUB, STUBS, WHEEL_FOLDER, WHEEL_SERVER
from openai_frontend.triton import Server, backends, library, python_backend
from tests.core.triton import python_models
from tests.core.triton.waiting import until

TEXT = "naïve 😀"

FACTS = """
import json, locale, multiprocessing, os, subprocess, sys

LOADED_AT_IMPORT = open(os.environ["TEXT_FILE"]).read()
CHILD = "import os, sys, numpy; print(sys.prefix, os.environ.get('LD_LIBRARY_PATH'))"

def answer(given):
    facts = {
        "prefix": sys.prefix,
        "executable": sys.executable,
        "python3": subprocess.run(["python3", "-c", CHILD], capture_output=True).stdout.decode(),
        "numpy": numpy.__file__,
        "module": __import__("module_on_the_path").NAME,
        "text": LOADED_AT_IMPORT,
        "encoding": sys.stdout.encoding,
    }
    return numpy.array([json.dumps(facts)], dtype=object)
"""

SPAWNS = """
import multiprocessing

def answer(given):
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return numpy.array([str(pool.apply(sum, ([1, 2, 3],)))], dtype=object)
"""

ARRAYS = {
    "BOOL": np.array([True, False, True]),
    "UINT8": np.array([1, 2, 255], np.uint8),
    "INT16": np.array([-1, 2, 3], np.int16),
    "INT32": np.array([-1, 2, 1 << 30], np.int32),
    "INT64": np.array([-1, 2, 1 << 60], np.int64),
    "UINT64": np.array([1, 2, 1 << 63], np.uint64),
    "FP16": np.array([0.5, -2], np.float16),
    "FP32": np.array([0.5, -2, 1e30], np.float32),
    "FP64": np.array([0.5, -2, 1e300], np.float64),
}


def texts(*values: str) -> tuple[str, tuple[int, ...], bytes]:
    encoded = [value.encode() for value in values]
    raw = b"".join(len(each).to_bytes(4, "little") + each for each in encoded)
    return "BYTES", (len(values),), raw


async def asked(server: Server, model: str, tensor: Any, name: str = "IN") -> Any:
    [[response]] = [burst async for burst in server.infer(model, {name: tensor})]
    return response


@pytest.mark.slow
async def test_every_datatype_is_returned(repository, start_server):
    """A Python model receives and returns the request's values in every datatype."""
    datatypes = {f"IN_{datatype}": datatype for datatype in (*ARRAYS, "STRING")}
    python_models.write(repository, "echo", inputs=datatypes)
    server = await start_server()

    tensors: dict[str, Any] = {
        f"IN_{datatype}": (datatype, array.shape, array.tobytes())
        for datatype, array in ARRAYS.items()
    }
    tensors["IN_STRING"] = texts("", TEXT, "x" * 1001)
    [[response]] = [burst async for burst in server.infer("echo", tensors)]

    for datatype, array in ARRAYS.items():
        answer = np.frombuffer(memoryview(response.tensor(f"OUT_{datatype}")), array.dtype)
        assert array.tolist() == answer.tolist()
    strings = [each.decode() for each in response.tolist("OUT_STRING")]
    assert strings == ["", TEXT, "x" * 1001]


@pytest.mark.slow
async def test_environment_is_the_gateways(repository, start_server, monkeypatch, tmp_path):
    """A model and its subprocesses use this interpreter's packages, PYTHONPATH and UTF-8."""
    (tmp_path / "module_on_the_path.py").write_text("NAME = 'found'")
    (tmp_path / "text").write_text(TEXT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TEXT_FILE", str(tmp_path / "text"))
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    python_models.write(repository, "facts", answer=FACTS)
    server = await start_server()

    facts = json.loads((await asked(server, "facts", texts("?"))).item("OUT"))

    assert facts == {
        "prefix": sys.prefix,
        "executable": sys.executable,
        "python3": f"{sys.prefix} None\n",
        "numpy": np.__file__,
        "module": "found",
        "text": TEXT,
        "encoding": "UTF-8",
    }


LAST_WORDS = """
import atexit

atexit.register(print, "at exit", end="")

def answer(given):
    return given
"""


@pytest.mark.slow
async def test_a_stub_ends_in_order(repository, start_server, capfd):
    """Its model's exit functions run and their output is written; nothing crashes."""
    python_models.write(repository, "model", answer=LAST_WORDS)
    others = set(psutil.Process().children())
    server = await start_server()
    stubs = set(psutil.Process().children()) - others
    await server.unload_model("model")
    await until(lambda: not any(each.is_running() for each in stubs))

    printed, errors = capfd.readouterr()
    assert "at exit" in printed
    assert "Fatal Python error" not in errors


@pytest.mark.slow
async def test_model_can_spawn_processes(repository, start_server):
    """multiprocessing's spawn works inside a model, as engines with workers need it."""
    python_models.write(repository, "spawns", answer=SPAWNS)
    server = await start_server()

    assert (await asked(server, "spawns", texts("?"))).item("OUT") == b"6"


@pytest.mark.slow
async def test_ensembles_of_python_models(repository, start_server):
    """An ensemble passes tensors from one Python model to the next."""
    for name, added in (("first", "b"), ("second", "c")):
        body = f'def answer(given):\n    return given + "{added}".encode()'
        python_models.write(repository, name, answer=body)
    python_models.write_ensemble(repository)
    server = await start_server()

    response = await asked(server, "ensemble", texts("a"), "QUESTION")

    assert response.item("REPLY") == b"abc"


@pytest.mark.slow
async def test_python_based_backend(repository, start_server, tmp_path):
    """A backend directory may contain a Python program for all its models, like NVIDIA's vLLM
    backend.
    """
    python_models.write_backend(tmp_path / "backends", repository)
    server = await start_server(backend_directory=tmp_path / "backends")

    assert (await asked(server, "model", texts("a"))).item("OUT") == b"a"


@pytest.mark.slow
async def test_python_based_backend_in_an_image(repository, start_server, tmp_path):
    """The same with an installed Python backend, as in NVIDIA's images."""
    installed = tmp_path / "backends"
    installed.mkdir()
    python_backend.install(installed / "python", library.server_folder(library.find()))
    python_models.write_backend(installed, repository)
    server = await start_server(backend_directory=installed)

    assert (await asked(server, "model", texts("a"))).item("OUT") == b"a"


async def test_broken_model(repository, start_server):
    """The exception at its load is the reason in the index."""
    python_models.write(repository, "broken", answer="raise ValueError('no weights')")
    server = await start_server()

    [entry] = server.model_index()
    assert "ValueError: no weights" in entry.reason


async def test_no_shared_library(repository, start_server, monkeypatch):
    """Without libpython the model's reason is one line that says so."""
    monkeypatch.setattr(python_backend, "_mapped_libraries", lambda _: set())
    monkeypatch.setattr(python_backend, "_library_folders", list)
    python_models.write(repository, "model")
    server = await start_server()

    [entry] = server.model_index()
    assert entry.reason.startswith(
        f"Triton's Python backend needs libpython{python_backend.VERSION}"
    )
    assert "\n" not in entry.reason


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel's server folder whose stub prints its first argument and its environment."""
    server = tmp_path / "site-packages" / WHEEL_SERVER
    stub = server / STUBS / python_backend.VERSION / STUB
    stub.parent.mkdir(parents=True)
    stub.write_text('#!/bin/sh\nprintf "%s\\0" "$1"; cat /proc/$$/environ\n')
    stub.chmod(0o700)
    (server / "backends" / "python").mkdir(parents=True)
    for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
        (server / "backends" / "python" / name).touch()
    return server


def started(folder: Path, **changed: str) -> tuple[str, dict[str, str]]:
    """The first argument and the environment of a stub that was started from `folder` by a gateway
    whose environment has `changed`.
    """
    command = [str(folder / STUB), "model.py"]
    printed = subprocess.check_output(command, env={**os.environ, **changed})
    argument, *variables = printed.decode("latin-1").rstrip("\0").split("\0")
    return argument, dict(each.split("=", 1) for each in variables)


# As imports of vLLM change them, and worse
CHANGED = {
    "LD_LIBRARY_PATH": "/packages/cv2/../../lib64:/opt/x y",
    "LD_PRELOAD": "",
    "OMP_NUM_THREADS": "1",
    "PATH": "/elsewhere:/usr/bin:/bin",
    "PYTHONWARNINGS": "ignore::FutureWarning",
    "PYTHONHOME": "/nowhere",
}


def test_stub_environment(wheel, tmp_path, monkeypatch):
    """A stub gets the recorded variables, whatever changed them later; libpython and its
    interpreter are found first.
    """
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/x y")
    monkeypatch.setenv("quoted ' name", "two\nlines \udcff")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    folder = tmp_path / "python"
    python_backend.install(folder, wheel)
    recorded = {name.decode("latin-1"): os.environb[name].decode("latin-1") for name in os.environb}

    argument, environment = started(folder, **CHANGED)

    assert argument == "model.py"
    assert environment == {
        **recorded,
        "PATH": f"{folder / 'environment' / 'bin'}:{recorded['PATH']}",
        "LD_LIBRARY_PATH": f"{folder / 'lib'}:/opt/x y",
    }


def test_recorded_environment_is_not_on_disk(wheel, tmp_path, monkeypatch):
    """It may have secrets. It ends with its descriptor."""
    monkeypatch.setenv("SECRET", "not on a disk")
    folder = tmp_path / "python"
    descriptor = python_backend.install(folder, wheel)

    files = [each for each in folder.rglob("*") if each.is_file()]
    memory = [each for each in files if b"not on a disk" in each.read_bytes()]
    assert [each.readlink().parts[:2] for each in memory] == [("/", "proc")]
    os.close(descriptor)
    assert not memory[0].exists()


# LD_LIBRARY_PATH as Triton leaves it for a model with an EXECUTION_ENV_PATH, and as imports do
LIBRARY_PATHS = {
    "recorded path unset": ("", "{own}/lib:", True),
    "recorded path set": ("/opt", "{own}/lib:/opt", True),
    "after an import": ("/opt", "{own}/lib:/packages/lib64:/opt", True),
    "in the recorded path too": ("{own}/lib", "{own}/lib:{own}/lib", True),
    "the recorded path itself": ("{own}/lib:/opt", "{own}/lib:/opt", False),
    "the gateway's own": ("", "{gateway}/lib:", False),
    "an import": ("", "/packages/cv2/../../lib64:", False),
    "an import of a folder lib": ("", "/packages/lib:", False),
}


@pytest.mark.parametrize(
    ("recorded", "found", "has_own"), LIBRARY_PATHS.values(), ids=LIBRARY_PATHS
)
def test_execution_environment(wheel, tmp_path, monkeypatch, recorded, found, has_own):
    """A model with an EXECUTION_ENV_PATH starts in it, activated from the recorded variables."""
    own = tmp_path / "own"
    (own / "bin").mkdir(parents=True)
    (own / "bin" / "activate").write_text(f'export PATH="{own}/bin:$PATH" VIRTUAL_ENV="{own}"\n')
    places = {"own": own, "gateway": sys.prefix}
    monkeypatch.setenv("LD_LIBRARY_PATH", recorded.format(**places))
    folder = tmp_path / "python"
    python_backend.install(folder, wheel)

    changed = {**CHANGED, "LD_LIBRARY_PATH": found.format(**places)}
    _, environment = started(folder, **changed)

    binaries = own / "bin" if has_own else folder / "environment" / "bin"
    libraries = own / "lib" if has_own else folder / "lib"
    assert environment["PATH"] == f"{binaries}:{os.environ['PATH']}"
    assert environment["LD_LIBRARY_PATH"].split(":")[0] == str(libraries)
    assert environment["LD_LIBRARY_PATH"].partition(":")[2] == os.environ["LD_LIBRARY_PATH"]
    assert ("OMP_NUM_THREADS" in environment) == ("OMP_NUM_THREADS" in os.environ)


def test_no_stub_for_this_python(tmp_path):
    """A wheel without a stub for this Python version is rejected."""
    with pytest.raises(
        python_backend.PythonBackendUnavailable, match=f"for Python {python_backend.VERSION}"
    ):
        python_backend.install(tmp_path / "python", tmp_path)


@pytest.mark.parametrize("name", ["my models", "a;b", "$x", "(1)"])
def test_path_that_the_wheels_backend_splits(wheel, tmp_path, name):
    """Its models report the path as the reason; with it the core would wait for a stub forever."""
    (wheel.parent.parent / WHEEL_FOLDER).mkdir()
    core = wheel.parent.parent / WHEEL_FOLDER / "libtritonserver.so"
    repository = tmp_path / name

    made = backends.assemble(None, core, [repository])

    assert f"cannot use the path '{repository}'" in made.unavailable["python"]


def test_such_a_path_with_a_newer_core(wheel, tmp_path):
    """Its backend starts stubs without a shell."""
    python_backend.install(tmp_path / "python", wheel, [tmp_path / "my models"])

    assert (tmp_path / "python" / STUB).is_file()


def test_temporary_folder_mounted_noexec(wheel, tmp_path, monkeypatch):
    """The reason names TMPDIR."""
    monkeypatch.setattr(os, "access", lambda *_: False)

    with pytest.raises(python_backend.PythonBackendUnavailable, match="set TMPDIR"):
        python_backend.install(tmp_path / "python", wheel)


def test_installed_backend_is_unchanged(tmp_path):
    """An image's Python backend is used as it is."""
    own = tmp_path / "python"
    own.mkdir()

    collected = backends.assemble(tmp_path, library.find())

    assert own == (collected.folder / "python").readlink()


def test_wheels_backend_needs_the_wheels_core(tmp_path):
    """With another core the wheel's backend would load a second core, so it is left out."""
    collected = backends.assemble(tmp_path, Path("/opt/tritonserver/lib/libtritonserver.so"))

    assert not (collected.folder / "python").exists()


@pytest.mark.slow
def test_no_blas_threads_when_stubs_are_forked(wheel, tmp_path):
    """NumPy's OpenBLAS has no threads at that time, or two concurrent forks would deadlock."""
    script = (
        "import numpy, os, pathlib\n"
        "from openai_frontend.triton import python_backend\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        f"python_backend.install(pathlib.Path({str(tmp_path / 'python')!r}), "
        f"pathlib.Path({str(wheel)!r}))\n"
        "print(before > 1, len(os.listdir('/proc/self/task')))"
    )
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "4"}

    told = subprocess.check_output([sys.executable, "-c", script], env=environment, text=True)

    assert told == "True 1\n"
