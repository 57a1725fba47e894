"""`make core`: builds libtritonserver and Triton's Python backend from NVIDIA's sources.

Without GPU, HTTP, gRPC and cloud storage, with the libraries of the system in place of NVIDIA's
downloads. The output has the folders of /opt/tritonserver, and a stub for this Python.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from openai_frontend.runtime.triton_interface import (
    BACKENDS,
    IMAGE_LIBRARY,
    PYTHON_BACKEND,
    PYTHON_BACKEND_FILES,
    STUB,
    STUBS,
)
from openai_frontend.triton import python_backend
from scripts.setup.preflight import find_compiler
from scripts.setup.progress import CommandFailed, Progress

BUILD = Path("build/core")
# `make setup` installs CMake and Ninja beside Python
SEARCH_PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
FOR_CMAKE = BUILD.absolute() / "cmake"
OWN_API = Path("native/triton_api.h")

# Checkout -> its repository, and a file that only it has
_NVIDIA = "https://github.com/triton-inference-server"
CHECKOUTS = {
    "core": (f"{_NVIDIA}/core", "include/triton/core/tritonserver.h"),
    "common": (f"{_NVIDIA}/common", "protobuf/model_config.proto"),
    "backend": (f"{_NVIDIA}/backend", "include/triton/backend/backend_common.h"),
    "python_backend": (f"{_NVIDIA}/python_backend", "src/pb_stub.cc"),
    "pybind11": ("https://github.com/pybind/pybind11", "include/pybind11/pybind11.h"),
    "dlpack": ("https://github.com/dmlc/dlpack", "include/dlpack/dlpack.h"),
}
REPOS = ("core", "common", "backend")  # as NVIDIA's build names them
THIRD = ("pybind11", "dlpack")
TOOLS = {
    "cmake": "make setup, or pip install cmake",
    "ninja": "make setup, or pip install ninja",
    "protoc": "apt-get install protobuf-compiler",
    "pkg-config": "apt-get install pkg-config",
}
# Header -> Debian's package of its library
HEADERS = {
    "archive.h": "libarchive-dev",
    "boost/core/span.hpp": "libboost1.81-dev, or another Boost since 1.78",
    "boost/interprocess/managed_external_buffer.hpp": "libboost1.81-dev",
    "google/protobuf/message.h": "libprotobuf-dev",
    "numa.h": "libnuma-dev",
    "prometheus/registry.h": "prometheus-cpp-dev",
    "Python.h": "python3-dev",
    "rapidjson/document.h": "rapidjson-dev",
    "re2/re2.h": "libre2-dev",
    "zlib.h": "zlib1g-dev",
}

# For CMake: Debian's libraries have no such files, and the unit tests of the sources, which are not
# built, want GoogleTest.
CMAKE_FILES = {
    "protobuf-config.cmake": "include(${CMAKE_ROOT}/Modules/FindProtobuf.cmake)\n",
    "re2Config.cmake": """\
find_package(PkgConfig REQUIRED)
pkg_check_modules(re2 REQUIRED IMPORTED_TARGET GLOBAL re2)
if(NOT TARGET re2::re2)
  add_library(re2::re2 ALIAS PkgConfig::re2)
endif()
""",
    "GTestConfig.cmake": "",
    "googletest/CMakeLists.txt": """\
foreach(name gtest gtest_main gmock)
  add_library(GTest::${name} INTERFACE IMPORTED GLOBAL)
endforeach()
""",
    # An empty Boost in place of a download: the compiler then finds the system's.
    "boost-source/boost/README": "The system's Boost is used.\n",
}

LOAD = """
import sys
from pathlib import Path
from openai_frontend.triton import library
library.load(Path(sys.argv[1]))
"""

OFF = ("GPU", "MALI_GPU", "METRICS_GPU", "NVTX", "GCS", "S3", "AZURE_STORAGE")
ON = ("LOGGING", "STATS", "METRICS", "METRICS_CPU", "TRACING", "ENSEMBLE")


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    sources, output = options.sources.absolute(), options.output.absolute()
    library = output / "lib" / IMAGE_LIBRARY.name
    try:
        refuse([*problems(sources)])
        build(sources, output, options.version, options.jobs)
        refuse(load_problems(library))
    except CommandFailed as error:
        sys.stderr.writelines(f"build_core: {line}\n" for line in str(error).splitlines())
        return 1
    sys.stdout.write(f"Use it with --triton-library={library}\n")
    return 0


def refuse(lines: list[str]) -> None:
    if lines:
        raise CommandFailed("\n".join(lines))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="scripts.build_core", description=__doc__)
    add = made.add_argument
    add("--sources", type=Path, required=True, help=f"folder with {', '.join(CHECKOUTS)}")
    add("--output", type=Path, required=True, help="folder for lib/, backends/ and the stub")
    add("--version", default="0.0.0", help="version that the core reports. Default: 0.0.0")
    add("--jobs", type=int, default=os.cpu_count(), help="compilers at a time. Default: all CPUs")
    return made


def problems(sources: Path) -> Iterator[str]:
    """What is missing for a build, a line each."""
    yield from checkout_problems(sources)
    for tool, remedy in TOOLS.items():
        if program(tool) is None:
            yield f"{tool} is not installed: {remedy}"
    compiler = find_compiler()
    if compiler is None:
        yield "no C++ compiler (g++ or clang++) was found: apt-get install g++"
    else:
        for header in missing_headers(compiler):
            yield f"{header} does not exist: apt-get install {HEADERS[header]}"
    try:
        python_backend.shared_library()
    except python_backend.PythonBackendUnavailable as error:
        yield str(error)


def program(name: str) -> str | None:
    return shutil.which(name, path=SEARCH_PATH)


def checkout_problems(sources: Path) -> Iterator[str]:
    for name, (repository, file) in CHECKOUTS.items():
        if not (sources / name / file).is_file():
            yield f"{sources / name} is no checkout of {repository}: {file} is missing"
    header = sources / "core" / CHECKOUTS["core"][1]
    if header.is_file():
        minor, needed = api_minor(header, r"API_VERSION_MINOR (\d+)"), needed_minor()
        if minor < needed:
            yield f"{header} declares C API 1.{minor}; the gateway needs 1.{needed} or later"


def needed_minor() -> int:
    return api_minor(OWN_API, r"kApiMinMinor = (\d+)")


def api_minor(header: Path, pattern: str) -> int:
    found = re.search(pattern, header.read_text())
    return int(found[1]) if found else 0


def missing_headers(compiler: str) -> list[str]:
    """The headers that the preprocessor does not find."""
    probe = "".join(f"#if !__has_include(<{name}>)\nmissing {name}\n#endif\n" for name in HEADERS)
    include = f"-I{sysconfig.get_paths()['include']}"
    command = [*compiler.split(), "-E", "-P", "-x", "c++", include, "-"]
    done = subprocess.run(command, input=probe, capture_output=True, text=True, check=False)
    return re.findall(r"^missing (.*)$", done.stdout, re.MULTILINE)


def build(sources: Path, output: Path, version: str, jobs: int) -> None:
    """Build both, and copy what they need at run time to `output`. Raises CommandFailed."""
    for name, text in CMAKE_FILES.items():
        file = FOR_CMAKE / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    progress = Progress(2)
    progress.begin("libtritonserver")
    folder = compile_targets(progress, sources, core(version), jobs)
    copy(folder / IMAGE_LIBRARY.name, output / "lib")
    progress.end()
    progress.begin("Python backend")
    folder = compile_targets(progress, sources, backend(sources), jobs)
    library, module = PYTHON_BACKEND_FILES
    copy(folder / library, output / BACKENDS / PYTHON_BACKEND)
    resources = sources / "python_backend" / "src" / "resources"
    copy(resources / module, output / BACKENDS / PYTHON_BACKEND)
    copy(folder / STUB, output / STUBS / python_backend.VERSION)
    progress.end()


class Project(NamedTuple):
    """A CMake project of the checkouts."""

    source: str
    targets: list[str]
    options: list[str]


def core(version: str) -> Project:
    packages = {"Protobuf": FOR_CMAKE, "re2": FOR_CMAKE, "GTest": FOR_CMAKE}
    options = [f"-D{name}_DIR={folder}" for name, folder in packages.items()]
    options += ["-DTRITON_COMMON_ENABLE_PROTOBUF_PYTHON=OFF", f"-DTRITON_VERSION={version}"]
    return Project("core/src", ["triton-core"], [*options, "-DTRITON_MIN_CXX_STANDARD=17"])


def backend(sources: Path) -> Project:
    targets = ["triton-python-backend", "triton-python-backend-stub"]
    options = [f"-DTRITON_BOOST_URL={FOR_CMAKE / 'boost-source'}"]
    options += [f"-DFETCHCONTENT_SOURCE_DIR_{name.upper()}={sources / name}" for name in THIRD]
    # pybind11 reads one of them, depending on its version
    options += [f"-D{name}_EXECUTABLE={sys.executable}" for name in ("PYTHON", "Python")]
    return Project("python_backend", targets, options)


def compile_targets(progress: Progress, sources: Path, project: Project, jobs: int) -> Path:
    """Configure and build; returns the folder of the results."""
    folder = BUILD.absolute() / project.targets[0]
    options = [
        "-GNinja",
        f"-DCMAKE_MAKE_PROGRAM={program('ninja')}",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG",
        "-DCMAKE_SHARED_LINKER_FLAGS=-s",
        "-DCMAKE_EXE_LINKER_FLAGS=-s",
        "-DCMAKE_SKIP_RPATH=ON",  # this folder need not exist at run time
        "-DCMAKE_POLICY_VERSION_MINIMUM=3.5",  # DLPack declares an older one
        f"-DFETCHCONTENT_SOURCE_DIR_GOOGLETEST={FOR_CMAKE / 'googletest'}",
        *(f"-DFETCHCONTENT_SOURCE_DIR_REPO-{name.upper()}={sources / name}" for name in REPOS),
        *(f"-DTRITON_ENABLE_{name}=OFF" for name in OFF),
        *(f"-DTRITON_ENABLE_{name}=ON" for name in ON),
        *project.options,
    ]
    cmake = str(program("cmake"))
    configure = [cmake, "--fresh", "-Wno-dev", "-B", str(folder)]
    progress.run([*configure, "-S", str(sources / project.source), *options])
    make = [cmake, "--build", str(folder), "-j", str(jobs), "--target"]
    progress.run([*make, *project.targets])
    return folder


def copy(file: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / file.name
    target.unlink(missing_ok=True)  # a process that runs the old one keeps it
    shutil.copy(file, target)


def load_problems(library: Path) -> list[str]:
    """The gateway's error for the library, if any. In another process: it can load only one."""
    command = [sys.executable, "-c", LOAD, str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.splitlines()[-1:] if done.returncode else []


if __name__ == "__main__":
    sys.exit(main())
