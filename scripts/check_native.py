"""`make check-native`: runs the core's tests on an AddressSanitizer build."""

import os
import subprocess
import sys
from pathlib import Path

BUILD = Path("build/address")
SUPPRESSIONS = Path("scripts/leaks.supp")


def main() -> int:
    build()
    command = [sys.executable, "-m", "pytest", "-p", "scripts.sanitized_core"]
    # NumPy, which that test needs, and NVIDIA's Python backend keep memory until the process ends.
    tests = ["tests/core/triton", "--ignore=tests/core/triton/test_python_backend.py"]
    tests += ["tests/core/serving/test_relay_segments.py"]
    tests += ["tests/core/serving/test_relay_logprobs.py"]
    return subprocess.run(
        [*command, *tests, *sys.argv[1:]], env=environment(), check=False
    ).returncode


def build() -> None:
    cmake = str(Path(sys.executable).with_name("cmake"))
    options = [
        "-GNinja",
        f"-DCMAKE_MAKE_PROGRAM={Path(sys.executable).with_name('ninja')}",
        f"-DPython_EXECUTABLE={sys.executable}",
        "-DOPENAI_FRONTEND_SANITIZE=address",
    ]
    subprocess.run([cmake, "-S", ".", "-B", str(BUILD), *options], check=True)
    subprocess.run([cmake, "--build", str(BUILD)], check=True)


def environment() -> dict[str, str]:
    (extension,) = BUILD.glob("_core.*.so")
    return {
        **os.environ,
        "OPENAI_FRONTEND_SANITIZED_CORE": str(extension.resolve()),
        # The sanitizer must come first in the process, and finds C++'s throw only after libstdc++.
        "LD_PRELOAD": f"{compiler_library('libasan.so')} {compiler_library('libstdc++.so')}",
        "ASAN_OPTIONS": "detect_leaks=1",
        "LSAN_OPTIONS": f"suppressions={SUPPRESSIONS.resolve()}:print_suppressions=0",
        # Each object gets an allocation of its own, so that a use after its end is seen.
        "PYTHONMALLOC": "malloc",
    }


def compiler_library(name: str) -> str:
    command = [os.environ.get("CXX", "g++"), f"-print-file-name={name}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(found).is_absolute():
        sys.exit(f"{command[0]} has no {name}: install its sanitizer library")
    return found


if __name__ == "__main__":
    sys.exit(main())
