"""`make test-newest`: the gateway without vLLM, at the newest versions that pyproject.toml admits.

The lock says what this project was tested with; users get what pip resolves.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.setup.install import VENV, pip, site_packages
from scripts.setup.lock import TRITON_CORE

ENVIRONMENT = VENV / "newest"
ROOT = Path(__file__).parent.parent

# What depends on packages of others, without an engine: over fakes and over the mock engine.
TESTS = (
    "tests/unit/auth",
    "tests/unit/middleware",
    "tests/unit/prompting",
    "tests/unit/routers",
    # A minute of long prompts and slow clients, which depend on no version.
    "--ignore=tests/unit/routers/test_long_prompts.py",
    "--ignore=tests/unit/routers/test_text_relay.py",
)
# The build of `make setup`, which is up to date: nothing is compiled again.
_BUILD = "--config-settings=build-dir=build/editable-{wheel_tag}"


def main(arguments: list[str]) -> int:
    python = ENVIRONMENT / "bin" / "python"
    make_environment(python)
    command = [str(python), "-m", "pytest", "--override-ini=pythonpath=", *(arguments or TESTS)]
    # The installed wheel is tested, not the package in the current directory.
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    return subprocess.run(command, env=environment, check=False).returncode


def make_environment(python: Path) -> None:
    """Installs the wheel with its extras as pip resolves them now, and the tools of the tests."""
    _run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(ENVIRONMENT)])
    install = [*pip("install", python), "-qq", "--no-compile"]
    with tempfile.TemporaryDirectory() as folder:
        build = ["--no-deps", "--no-build-isolation", "--no-index", f"--wheel-dir={folder}"]
        _run([*pip("wheel"), "-qq", *build, _BUILD, "."])
        (wheel,) = Path(folder).glob("*.whl")
        _run([*install, f"{wheel}[jwt,otel]", "--group=test-gateway"])
    _run([*install, "--no-deps", TRITON_CORE])
    # After the installed packages on the path, for the tests and the engines among them.
    (site_packages(ENVIRONMENT) / "tests.pth").write_text(f"{ROOT}\n")


def _run(command: list[str]) -> None:
    path = os.pathsep.join([str(VENV.resolve() / "bin"), os.environ["PATH"]])
    subprocess.run(command, env={**os.environ, "PATH": path}, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
