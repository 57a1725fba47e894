"""What the gateway uses of vLLM, compared with the installed one; nothing is imported from it."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from openai_frontend.engines import vllm as engine_package
from openai_frontend.engines.vllm import capabilities, versions
from openai_frontend.engines.vllm.package_source import PackageSource, ReadFile, folder
from scripts.vllm_versions import read_results

SOURCES = Path(engine_package.__file__).parent
NAMES = [each.name for each in capabilities.CAPABILITIES]
PUBLIC = [each.name for each in capabilities.CAPABILITIES if each.public]
INTERNAL = set(NAMES) - set(PUBLIC)


@pytest.fixture(scope="module", autouse=True)
def parsed_once() -> Iterator[None]:
    """Parsing vLLM's files takes a second of CPU; most are the same in all tests. What is detected
    does not depend on the capabilities that a run leaves out.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(versions.VARIABLE, raising=False)
        patch.setattr(ast, "parse", cache(ast.parse))
        yield


def installed_files() -> ReadFile:
    return folder(versions.site_packages())


def changed(path: str, pattern: str, replacement: str, *, version: str | None = None) -> ReadFile:
    """The installed vLLM with another text in one file, or with another version."""
    read = installed_files()

    def read_changed(name: str) -> str | None:
        text = read(name)
        if text is not None and name == path:
            text, times = re.subn(pattern, replacement, text)
            assert times, f"{pattern} is not in {path}"
        if version is not None and name == "vllm/_version.py":
            text = f"__version__ = version = '{version}'"
        return text

    return read_changed


def compared(read: ReadFile) -> versions.Compatibility:
    return versions.of_source(PackageSource(read))


@pytest.mark.engine
def test_installed_vllm_has_everything() -> None:
    """Every name, parameter and field that the gateway uses exists, or is known to be missing in
    this version.
    """
    source = PackageSource(installed_files())
    version = versions.of_source(source).version.partition("+")[0]

    problems = {each.name: list(each.problems(source)) for each in capabilities.CAPABILITIES}
    known = read_results().get(version, {}).get("lacks", {})
    assert {name: found[0] for name, found in problems.items() if found} == known
    assert versions.installed().missing.keys() == known.keys()


@pytest.fixture
def lacking() -> set[str]:
    """What the installed vLLM lacks anyway; the locked one lacks nothing."""
    return set(versions.installed().missing)


def imported(path: Path) -> Iterator[str]:
    """Names of vLLM that a file of ours imports, as `module:name`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
            yield from (f"{node.module}:{each.name}" for each in node.names)


def test_every_import_of_vllm_is_listed() -> None:
    """An import that the table does not know could break without a report."""
    table = " ".join(each.requirements for each in capabilities.CAPABILITIES)
    listed = {*re.findall(r"vllm[\w.]*:\w+", table), *re.findall(r"vllm[\w.]*", table)}
    missing = {
        name: path.name
        for path in SOURCES.glob("*.py")
        for name in imported(path)
        if name not in listed and name.replace(":", ".") not in listed
    }

    assert missing == {}


@pytest.mark.engine
@pytest.mark.parametrize("version", ["0.23.1", "0.34.0", "0.34.0rc1.dev3+g12ab"])
def test_other_versions_use_only_the_public_client(version: str) -> None:
    """Even if every name exists: their meaning may have changed."""
    vllm = compared(changed("", "", "", version=version))

    assert vllm.missing.keys() == INTERNAL
    assert set(vllm.missing.values()) == {f"vLLM {version} is not tested, only 0.24 to 0.33"}
    assert "step_loop: `AsyncLLM.generate`" in "\n".join(vllm.reports())


@pytest.mark.engine
@pytest.mark.parametrize("version", ["0.24.0", "0.32.4+cpu", "0.33.0"])
def test_patch_releases_in_the_range_use_everything(version: str, lacking: set[str]) -> None:
    """Only the minor version matters."""
    assert compared(changed("", "", "", version=version)).missing.keys() == lacking


# They are used together or not at all
SCHEDULER_UNIT = {"scheduler", "grammar_engines", "statistics", "whole_outputs"}
LOST = {
    "a method of the scheduler": (
        "vllm/v1/core/sched/scheduler.py", "def _preempt_request", "def _preempt",
        SCHEDULER_UNIT, "Scheduler has no _preempt_request",
    ),
    "a parameter": (
        "vllm/v1/engine/input_processor.py", "lora_request: LoRARequest", "adapter: LoRARequest",
        {"step_loop"}, "InputProcessor.process_inputs does not accept lora_request",
    ),
    "a field": (
        "vllm/v1/engine/__init__.py", "new_token_ids: list", "tokens: list",
        {"step_loop"} | SCHEDULER_UNIT, "EngineCoreOutput does not accept new_token_ids",
    ),
    "a function": (
        "vllm/v1/engine/core_client.py", "def _process_utility_output", "def _utility",
        {"direct_sockets"}, "has no _process_utility_output",
    ),
    "a report of lost media": (
        "vllm/v1/engine/__init__.py", "mm_cache_miss_hashes: list", "lost: list",
        {"media_cache"}, "EngineCoreOutput does not accept mm_cache_miss_hashes",
    ),
    "a class": (
        "vllm/parser/parser_manager.py", "class ParserManager", "class Parsers",
        {"parsers"}, "has no ParserManager",
    ),
}  # fmt: skip


@pytest.mark.engine
@pytest.mark.parametrize("lost", LOST.values(), ids=LOST.keys())
def test_lost_name_disables_what_needs_it(
    lost: tuple[str, str, str, set[str], str], lacking: set[str]
) -> None:
    """The rest stays on; the reason names what is missing."""
    path, pattern, replacement, disabled, reason = lost
    if disabled <= lacking:
        pytest.skip("this vLLM lacks it anyway")
    vllm = compared(changed(path, pattern, replacement))

    assert vllm.missing.keys() == disabled | lacking
    assert all(reason in vllm.missing[name] for name in disabled)


@pytest.fixture
def from_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package `vllm` that is installed."""
    (tmp_path / "vllm").mkdir()
    monkeypatch.setattr(versions, "site_packages", lambda: tmp_path)
    return tmp_path


def test_unusable_vllm_is_one_line(from_folder: Path) -> None:
    """It names the version, what is missing and which versions work."""
    (from_folder / "vllm" / "_version.py").write_text("__version__ = version = '0.5.5'\n")

    with pytest.raises(ValueError, match=r"^in vLLM 0\.5\.5, vllm.* does not exist") as refused:
        versions.installed()
    assert str(refused.value).endswith(". Install vLLM 0.24 to 0.33.")
    assert "\n" not in str(refused.value)


@pytest.mark.engine
def test_tests_can_disable_internal_parts(
    monkeypatch: pytest.MonkeyPatch, lacking: set[str]
) -> None:
    """What is public cannot be left out."""
    monkeypatch.setenv(versions.VARIABLE, "cpu_worker,step_loop")

    assert versions.installed().missing.keys() == INTERNAL - {"cpu_worker", "step_loop"} | lacking


@pytest.mark.parametrize(
    ("version", "minor"), [("0.32.1+cpu", (0, 32)), ("1.2", (1, 2)), ("unknown", (0, 0))]
)
def test_minor_version(version: str, minor: tuple[int, int]) -> None:
    """A version that is none is older than all."""
    assert versions.minor_version(version) == minor
