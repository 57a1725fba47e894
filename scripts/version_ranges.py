"""`make test-oldest`, `make test-newest`: the gateway without vLLM, at either end of the ranges
that pyproject.toml declares.

The lock says what this project was tested with; users get what pip resolves, or already have older
versions that the ranges allow.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from scripts.setup.install import VENV, pip, site_packages
from scripts.setup.lock import TRITON_CORE, read_project

ROOT = Path(__file__).parent.parent
EXTRAS = ("grpc", "jwt", "object-storage", "otel", "redis")

# Every dependency at work, without an engine: over fakes, over the mock engine and as a process.
TESTS = (
    "-n1",  # a test that ends its process, as native code can, is one that fails
    "--repeat-failures",
    "-m=not engine and not slow",
    "tests/api/test_limits.py",
    "tests/api/conformance/test_stream_rules.py",
    "tests/fast/auth",
    "tests/medium/auth",
    "tests/api/cli/test_keys.py",
    "tests/fast/cli/test_pbtxt.py",
    "tests/api/cli/test_process.py",
    "tests/fast/cli/top/test_view.py",
    "tests/fast/config",
    "tests/medium/config",
    "tests/fast/engines/test_zmq_io.py",
    "tests/api/kserve",
    "tests/fast/kserve",
    "tests/medium/kserve",
    "tests/fast/metrics",
    "tests/api/middleware",
    "tests/fast/middleware",
    "tests/medium/middleware",
    "tests/api/models/test_management.py",
    "tests/api/models/test_on_demand.py",
    "tests/fast/object_storage",
    "tests/medium/object_storage",
    "tests/fast/prompting",
    "tests/medium/prompting",
    "tests/api/routers",
    "tests/medium/routers",
    "tests/api/server",
    "tests/fast/server",
    "tests/medium/server",
    "tests/medium/test_compatibility.py",
    "tests/medium/tracing/test_exporter.py",
    "tests/api/tracing/test_secrets.py",
    # Two thirds of the folder's time, for what depends on no version.
    *(
        f"--ignore=tests/{name}.py"
        for name in (
            "api/routers/test_long_prompts", "api/routers/test_refusals",
            "api/routers/test_text_relay", "api/routers/test_tokenization",
            "api/routers/test_tools", "medium/routers/test_fields_reach_the_model",
            "medium/routers/test_settings_take_effect",
        )
    ),
)  # fmt: skip
# The build of `make setup`, which is up to date: nothing is compiled again.
_BUILD = "--config-settings=build-dir=build/editable-{wheel_tag}"


class InvalidRange(Exception):
    """The message names the requirement."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts.version_ranges", description=__doc__)
    parser.add_argument("end", choices=("oldest", "newest"))
    parser.add_argument("options", nargs=argparse.REMAINDER, help="pytest's, instead of ours")
    given = parser.parse_args(arguments)
    project = read_project(Path("pyproject.toml"))
    try:
        limits = oldest(requirements(project)) if given.end == "oldest" else []
    except InvalidRange as error:
        print(error, file=sys.stderr)
        return 1
    environment = VENV / given.end
    make_environment(environment, beside_vllm(project), limits)
    python = environment / "bin" / "python"
    command = [str(python), "-m", "pytest", "--override-ini=pythonpath="]
    # The installed wheel is tested, not the package in the current directory.
    variables = {**os.environ, "PYTHONSAFEPATH": "1"}
    return subprocess.run(
        [*command, *(given.options or TESTS)], env=variables, check=False
    ).returncode


def requirements(project: dict[str, Any]) -> list[str]:
    """What pyproject.toml asks of other packages at run time, without vLLM."""
    extras = project["project"]["optional-dependencies"]
    found = [*project["project"]["dependencies"], *beside_vllm(project)]
    return found + [requirement for extra in EXTRAS for requirement in extras[extra]]


def beside_vllm(project: dict[str, Any]) -> list[str]:
    """What the engine needs, apart from vLLM itself."""
    wanted = project["project"]["optional-dependencies"]["vllm"]
    return [requirement for requirement in wanted if Requirement(requirement).name != "vllm"]


def oldest(declared: Iterable[str]) -> list[str]:
    """Pins for the lower bounds, which must be released versions. Raises InvalidRange."""
    pins = []
    for line in declared:
        requirement = Requirement(line)
        bounds = [each.version for each in requirement.specifier if each.operator in (">=", "==")]
        if len(bounds) != 1:
            example = f"{requirement.name}>=1.0"
            raise InvalidRange(
                f"pyproject.toml: {line!r} needs exactly one lower bound, such as {example!r}"
            )
        pins.append(f"{requirement.name}=={bounds[0]}")
    return pins


def make_environment(environment: Path, engine: list[str], limits: list[str]) -> None:
    """Installs the wheel with its extras, what the engine needs, and the tests' tools: the newest
    that pip finds within `limits`.
    """
    python = environment / "bin" / "python"
    _run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(environment)])
    install = [*pip("install", python), "-qq", "--no-compile"]
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder, "constraints.txt")
        constraints.write_text("\n".join(limits))
        build = ["--no-deps", "--no-build-isolation", "--no-index", f"--wheel-dir={folder}"]
        _run([*pip("wheel"), "-qq", *build, _BUILD, "."])
        (wheel,) = Path(folder).glob("*.whl")
        wanted = [f"{wheel}[{','.join(EXTRAS)}]", *engine, "--group=test-gateway"]
        _run([*install, *wanted, f"--constraint={constraints}"])
    _run([*install, "--no-deps", TRITON_CORE])
    # After the installed packages on the path, for the tests and the engines among them.
    (site_packages(environment) / "tests.pth").write_text(f"{ROOT}\n")


def _run(command: list[str]) -> None:
    path = os.pathsep.join([str(VENV.resolve() / "bin"), os.environ["PATH"]])
    subprocess.run(command, env={**os.environ, "PATH": path}, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
