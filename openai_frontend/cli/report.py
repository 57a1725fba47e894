"""What `check` says of a model, as a table, as one line of a list or as JSON. Finds nothing out."""

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

_JOINED = ("aliases", "versions", "serves", "refused", "constraints", "adapters", "parts")
_WIDTH = 14
_LINE = 84


@dataclass(kw_only=True)
class Report:
    """In the order in which it is said."""

    model: str
    aliases: Sequence[str] = ()
    versions: Sequence[int] = ()  # those that Triton would load; requests may say `model@2`
    serves: list[str] = field(default_factory=list)  # kinds of request
    contract: str = ""
    streams: str = ""
    derived: Sequence[str] = ()  # what of an answer the model does not report, and how it is had
    refused: Sequence[str] = ()  # request fields
    parts: Sequence[str] = ()  # the models that this one calls
    ensemble: str = ""
    expose: bool = False  # requests may name it though another model calls it
    tokenizer: str = ""
    max_model_len: int | None = None  # tokens of prompt and answer together; None: not known
    chat_template: str = ""
    tool_calls: str = ""
    reasoning: str = ""
    constraints: list[str] | None = None  # None: not known
    adapters: Sequence[str] = ()  # names by which requests ask for them
    why: Sequence[str] = ()  # of tool calls and reasoning
    will_not_work: list[str] = field(default_factory=list)
    problem: str | None = None  # why the model could not be served
    for_no_request: bool = False  # that alone is the problem


def as_text(report: Report) -> str:
    """A paragraph for each member that says something; several sentences stand below each other."""
    lines = []
    for name, value in asdict(report).items():
        sentences = _sentences(name, value)
        labels = [name.replace("_", " "), *[""] * len(sentences)]
        lines += [
            f"{label:<{_WIDTH}} {text}" for label, text in zip(labels, sentences, strict=False)
        ]
    return "".join(f"{line}\n" for line in lines)


def _sentences(name: str, value: object) -> list[str]:
    if isinstance(value, bool):
        return ["yes"] if value else []
    if name in _JOINED and isinstance(value, Sequence):
        joined = ", ".join(map(str, value))
        nothing = ["none"] if name == "constraints" else []
        return textwrap.wrap(joined, _LINE, break_long_words=False) or nothing
    if isinstance(value, list | tuple):
        return [str(each) for each in value]
    return [] if value in (None, "") else [str(value)]


def as_line(report: Report, width: int) -> str:
    """Its name, whether requests may name it, and what for or why not."""
    if report.problem is not None:
        state, reason = "not servable", report.problem
    elif report.ensemble:
        state, reason = "part", f"of {report.ensemble}"
    else:
        names = [*report.aliases, *report.adapters]
        also = f"; also as {', '.join(names)}" if names else ""
        state, reason = "servable", f"{', '.join(report.serves) or 'nothing'}{also}"
    return f"{report.model:<{width}}  {state:<12}  {reason}\n"
