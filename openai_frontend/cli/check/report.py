"""The report of `check` on a model, and its text."""

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

_JOINED = ("aliases", "versions", "serves", "refused", "constraints", "adapters", "steps")
_WIDTH = 14
_LINE = 84


@dataclass(kw_only=True)
class Report:
    """Fields in the order of the output."""

    model: str
    aliases: Sequence[str] = ()
    versions: Sequence[int] = ()  # those that Triton would load; requests may name `model@2`
    serves: list[str] = field(default_factory=list)  # kinds of request
    contract: str = ""
    streams: str = ""
    derived: Sequence[
        str
    ] = ()  # fields of a response that the model does not report, and their source
    refused: Sequence[str] = ()  # request fields
    steps: Sequence[str] = ()  # the steps of an ensemble
    ensemble: str = ""
    expose: bool = False  # requests may name it although it is a step of an ensemble
    tokenizer: str = ""
    max_model_len: int | None = None  # tokens of prompt and output together; None: unknown
    chat_template: str = ""
    images: str = ""  # limit per request, and the placeholder of one in the prompt
    input_audio: str = ""  # the same for audio in chats; empty if a model takes none
    media_urls: str = ""  # from which hosts images and audio are fetched; empty if from none
    audio: str = ""  # what a transcription model takes; empty for other models
    tool_calls: str = ""
    reasoning: str = ""
    constraints: list[str] | None = None  # None: unknown
    adapters: Sequence[str] = ()  # names that requests use
    why: Sequence[str] = ()  # evidence for tool_calls and reasoning
    limitations: Sequence[str] = ()  # what the installed engine cannot do
    will_not_work: list[str] = field(default_factory=list)
    problem: str | None = None  # why the model cannot be served
    no_endpoint: bool = False  # only KServe's protocol serves its tensors


def as_text(report: Report) -> str:
    """One paragraph per field that has a value; several sentences are separate lines."""
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
    """Name, state, and endpoints or the reason."""
    if report.problem is not None:
        state, reason = "not servable", report.problem
    elif report.ensemble:
        state, reason = "step", f"of {report.ensemble}"
    else:
        names = [*report.aliases, *report.adapters]
        also = f"; also as {', '.join(names)}" if names else ""
        state, reason = "servable", f"{', '.join(report.serves) or 'nothing'}{also}"
    return f"{report.model:<{width}}  {state:<12}  {reason}\n"
