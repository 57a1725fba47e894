"""Options of traces in a file, named as tritonserver's flags."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from openai_frontend.config.triton_options import (
    PATH,
    OptionTexts,
    TritonOption,
    ValueKind,
    one_of,
    whole_number,
)

TIMESTAMPS, TENSORS = 4, 8  # bits of a level, as Triton numbers them
_MODES = {"triton": 0, "opentelemetry": 1}  # tritonserver's numbers
# tritonserver's spellings, also older ones
_LEVELS = {
    "off": 0, "false": 0, "tensors": TENSORS,
    "timestamps": TIMESTAMPS, "true": TIMESTAMPS, "on": TIMESTAMPS, "min": TIMESTAMPS,
    "max": TIMESTAMPS,
}  # fmt: skip


def _level(text: str) -> tuple[int]:
    if text.lower() not in _LEVELS:
        raise ValueError(f"'{text}' must be OFF, TIMESTAMPS or TENSORS")
    return (_LEVELS[text.lower()],)


TRACE_OPTIONS: Mapping[str, TritonOption] = {
    "trace-mode": TritonOption(
        "",
        one_of(_MODES),
        "Where traces go. Default: to `otlp_endpoint` if it is set, else to `trace-file`.",
    ),
    "trace-file": TritonOption(
        "", PATH, "File for traces of inference requests, as JSON (docs/kserve.md#trace-files)."
    ),
    "trace-level": TritonOption(
        "",
        ValueKind("OFF or TIMESTAMPS or TENSORS", _level),
        "Times or tensors, which contain prompts and outputs, in `trace-file`.",
        default="OFF",
        repeats=True,
    ),
    "trace-rate": TritonOption(
        "",
        whole_number(),
        "Trace every request of that number to `trace-file`; 0: none.",
        default="1000",
    ),
    "trace-count": TritonOption(
        "",
        whole_number(-1, 2**31 - 1),
        "Number of traces after which no request is traced to `trace-file`; -1: any number.",
        default="-1",
    ),
    "trace-log-frequency": TritonOption(
        "",
        whole_number(),
        "Number of traces in each of the files `trace-file`.0, .1 and so on; 0: one file.",
        default="0",
    ),
}


@dataclass(frozen=True, slots=True)
class FileTraces:
    """The start's settings of traces in a file."""

    file: Path | None  # None: requests cannot be traced
    level: int  # bits; 0: no request is traced
    rate: int
    count: int  # -1: any number
    log_frequency: int  # 0: one file


def file_traces(texts: OptionTexts, *, otlp: bool) -> FileTraces | None:
    """None without tritonserver's mode `triton`. `otlp`: whether a collector is set.

    Raises ValueError that names an option which contradicts others.
    """
    mode = _values(texts, "trace-mode")
    to_collector = otlp or mode == [_MODES["opentelemetry"]]
    needs_file = [name for name in ("trace-count", "trace-log-frequency") if _is_set(texts, name)]
    if to_collector and ("trace-file" in texts or mode == [_MODES["triton"]]):
        option = "trace-file" if "trace-file" in texts else "trace-mode"
        raise ValueError(f"{option}: traces go to the collector at otlp_endpoint; remove one")
    if needs_file and "trace-file" not in texts:
        raise ValueError(f"{needs_file[0]}: needs trace-file")
    if to_collector or not (mode or "trace-file" in texts):
        return None
    [rate], [count], [frequency] = (
        _values(texts, f"trace-{name}") for name in ("rate", "count", "log-frequency")
    )
    return FileTraces(
        file=Path(texts["trace-file"][0]) if "trace-file" in texts else None,
        level=_combined(_values(texts, "trace-level")),
        rate=rate,
        count=count,
        log_frequency=frequency,
    )


def _combined(levels: list[int]) -> int:
    """OFF wins, as in tritonserver."""
    return reduce(or_, levels) if all(levels) else 0


def _values(texts: OptionTexts, name: str) -> list[Any]:
    """With the option's default; empty without one."""
    option = TRACE_OPTIONS[name]
    default = () if option.default is None else (option.default,)
    return [option.kind.parse(text)[0] for text in texts.get(name, default)]


def _is_set(texts: OptionTexts, name: str) -> bool:
    """Whether the value is not the default."""
    option = TRACE_OPTIONS[name]
    return _values(texts, name) != list(option.kind.parse(str(option.default)))
