import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from openai_frontend.runtime.triton_interface import WHEEL_FOLDER
from openai_frontend.triton import LibraryNotFound, Options, Server, library
from tests.gateway_process import ROOT

LOAD = """
import sys
from pathlib import Path
from openai_frontend.triton import LibraryNotFound, library
try:
    library.load(Path(sys.argv[1]))
except LibraryNotFound as error:
    print(error)
"""


def refusal(path: Path) -> str:
    """The error of loading `path`, in a process that has loaded no library yet."""
    command = [sys.executable, "-c", LOAD, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_options_before_a_library_is_loaded():
    """They are an error, not a crash."""
    program = "from openai_frontend.triton import _core; _core.ServerOptions()"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, "no Triton library is loaded" in done.stderr) == (1, True)


HEADER = (ROOT / "native" / "triton_api.h").read_text()
FUNCTIONS = [
    f"TRITON{kind}_{name}"
    for kind in ("SERVER", "BACKEND")
    for name in re.findall(
        r"^  X\([^,]*, (\w+),", HEADER.split(f"TRITON_{kind}_FUNCTIONS(X)")[1].split("#")[0], re.M
    )
]


def compiled(folder: Path, minor: int, functions: Sequence[str] = ()) -> Path:
    """A library that returns the API version 1.`minor`, and has the functions."""
    source, made = folder / "stub.c", folder / "libtritonserver.so"
    source.write_text(
        "void* TRITONSERVER_ApiVersion(unsigned* major, unsigned* minor)"
        f"{{ *major = 1; *minor = {minor}; return 0; }}\n"
        + "".join(f"void {name}(void) {{}}\n" for name in functions if "ApiVersion" not in name)
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", made, source], check=True)  # noqa: S607
    return made


def test_setting_has_priority(tmp_path):
    """A configured library is used instead of installed ones."""
    chosen = tmp_path / "libtritonserver.so"
    chosen.touch()

    assert library.find(chosen) == chosen


def test_setting_without_a_file(tmp_path):
    """A setting that names a missing file is rejected with its name."""
    absent = tmp_path / "absent.so"

    with pytest.raises(LibraryNotFound, match=rf"^triton_library: {absent} is not a file$"):
        library.find(absent)


def test_image_has_priority_over_the_wheel(tmp_path, monkeypatch):
    """In NVIDIA's images, their own library is used."""
    image = tmp_path / "libtritonserver.so"
    image.touch()
    monkeypatch.setattr(library, "IMAGE_LIBRARY", image)

    assert library.find() == image


def test_wheel_is_found_by_pattern(tmp_path, monkeypatch):
    """Outside an image the wheel's library is used, whatever hash its name contains."""
    monkeypatch.setattr(library, "IMAGE_LIBRARY", tmp_path / "absent.so")

    assert library.find().match(f"{WHEEL_FOLDER}/libtritonserver-*.so")


def test_no_library(tmp_path, monkeypatch):
    """One line says where it was searched and what to install."""
    monkeypatch.setattr(library, "IMAGE_LIBRARY", tmp_path / "absent.so")
    monkeypatch.setattr(library, "_wheel_folder", lambda: tmp_path)

    with pytest.raises(
        LibraryNotFound, match=rf"{tmp_path}: install it with .openai-frontend install-core.,.*$"
    ):
        library.find()


def test_file_that_is_not_a_library(tmp_path):
    """Another kind of file is rejected in one line with its path and the loader's reason."""
    path = tmp_path / "libtritonserver.so"
    path.write_text("not a library" * 100)

    assert refusal(path) == f"cannot use {path}: {path}: invalid ELF header\n"


@pytest.mark.parametrize("missing", [FUNCTIONS[1], FUNCTIONS[len(FUNCTIONS) // 2], FUNCTIONS[-1]])
def test_library_without_a_function(tmp_path, missing):
    """A library without one of the functions is rejected in one line that names it."""
    others = [name for name in FUNCTIONS if name != missing]
    path = compiled(tmp_path, minor=34, functions=others)

    assert refusal(path) == f"cannot use {path}: {path}: undefined symbol: {missing}\n"


def test_newer_library_with_every_function(tmp_path):
    """Each function is looked up by its name, so a later minor version is accepted."""
    assert refusal(compiled(tmp_path, minor=99, functions=FUNCTIONS)) == ""


def test_library_that_is_too_old(tmp_path):
    """The version of the C API is checked before anything else is called."""
    path = compiled(tmp_path, minor=32)

    assert refusal(path) == (
        f"cannot use {path}: its C API version is 1.32; "
        "this gateway needs 1.33 or a later minor version\n"
    )


def test_loading_twice():
    """A second load of the same library does nothing and returns the same result."""
    path = library.find()

    assert library.load(path) == library.load(path)


def test_loading_another_library(tmp_path):
    """A process has one core: a second library is rejected."""
    library.load(library.find())

    with pytest.raises(LibraryNotFound, match="another Triton library is loaded already"):
        library.load(tmp_path / "libtritonserver.so")


async def test_server_without_a_library(tmp_path, repository):
    """The server does not start, and the error has the reason."""
    server = Server(Options(model_repositories=[repository], library=tmp_path / "absent.so"))

    with pytest.raises(LibraryNotFound, match="is not a file"):
        await server.start()
