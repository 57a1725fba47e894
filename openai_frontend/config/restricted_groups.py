"""tritonserver's restricted groups of APIs, as options name them: GROUP[,GROUP]:HEADER=VALUE.

Values are secrets, which no message contains.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from openai_frontend.config.triton_options import OptionTexts, TritonOption, ValueKind

HTTP = "http-restricted-api"
GRPC = "grpc-restricted-protocol"
OPENAI = "openai-restricted-api"  # of NVIDIA's OpenAI frontend

# tritonserver's
GROUPS = (
    "health", "metadata", "inference", "shared-memory", "model-config", "model-repository",
    "statistics", "trace", "logging",
)  # fmt: skip
OPENAI_GROUPS = ("inference", "model-repository", "metrics", "health")

_FORM = "GROUP[,GROUP]:HEADER=VALUE"
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")  # a token of RFC 9110
_METADATA_KEY = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_GRPC_PREFIX = "triton-grpc-protocol-"
_VALUE = re.compile(r"[!-~]([ -~]{0,4094}[!-~])?")  # what a header can carry


@dataclass(frozen=True, slots=True)
class Restricted:
    """Groups whose requests need a header with a value."""

    groups: tuple[str, ...]
    header: str
    value: str = field(repr=False)


def _parse(text: str, known: Collection[str], names: re.Pattern[str], prefix: str) -> Restricted:
    named, colon, setting = text.partition(":")
    header, equals, value = setting.partition("=")
    if not (named and colon and header and equals and value):
        raise ValueError(f"must have the form {_FORM}")
    groups = named.split(",")
    for group in groups:
        if group not in known:
            shown = f"unknown group '{group[:64]}'" if group else "empty group"
            raise ValueError(f"{shown}; the groups are {', '.join(known)}")
    _refuse_repeated(groups)
    if not names.fullmatch(header):
        raise ValueError("HEADER is not a name of a header")
    if not _VALUE.fullmatch(value):
        raise ValueError("VALUE must have 1 to 4096 printable ASCII characters")
    return Restricted(tuple(groups), prefix + header, value)


def _kind(known: Collection[str], names: re.Pattern[str], prefix: str = "") -> ValueKind:
    return ValueKind(_FORM, lambda text: (_parse(text, known, names, prefix),))


RESTRICTING_OPTIONS: Mapping[str, TritonOption] = {
    HTTP: TritonOption(
        "",
        _kind(GROUPS, _HEADER),
        "Require a header with a value for the routes of the groups "
        "(docs/authentication.md#restricted-groups).",
        repeats=True,
    ),
    GRPC: TritonOption(
        "",
        _kind(GROUPS, _METADATA_KEY, _GRPC_PREFIX),
        f"The same for methods of gRPC, with metadata whose key is `{_GRPC_PREFIX}` and HEADER.",
        repeats=True,
    ),
    OPENAI: TritonOption(
        "",
        _kind(OPENAI_GROUPS, _HEADER),
        "The same for the routes outside `/v2`, as in NVIDIA's OpenAI frontend.",
        repeats=True,
    ),
}


def is_secret(item: str) -> bool:
    """Whether the text NAME=VALUE of an option must not be shown."""
    return item.partition("=")[0].strip() in RESTRICTING_OPTIONS


def restricted(texts: OptionTexts, name: str) -> Mapping[str, Restricted]:
    """By group. Raises ValueError, without the values, if a group is restricted twice."""
    kind = RESTRICTING_OPTIONS[name].kind
    found: list[Restricted] = [kind.parse(text)[0] for text in texts.get(name, ())]
    try:
        _refuse_repeated([group for each in found for group in each.groups])
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return {group: each for each in found for group in each.groups}


def _refuse_repeated(groups: Collection[str]) -> None:
    seen: set[str] = set()
    for group in groups:
        if group in seen:
            raise ValueError(f"group '{group}' is restricted twice")
        seen.add(group)


def joined(items: list[str]) -> list[str]:
    """Undo the split of comma-separated text between the groups of one option."""
    whole: list[str] = []
    for item in items:
        if whole and is_secret(whole[-1]) and ":" not in whole[-1]:
            whole[-1] += f",{item}"
        else:
            whole.append(item)
    return whole
