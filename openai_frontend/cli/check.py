"""`check`: how a model would be served, why, and what will not work. Starts no engine."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import chat_templates
from openai_frontend.cli import model_folder
from openai_frontend.cli.model_folder import ModelFolder
from openai_frontend.errors import ModelUnavailable
from openai_frontend.model_reading import (
    ModelFiles,
    ParserSettings,
    choose,
    lacks,
    template_for_tools,
)
from openai_frontend.prompting import chat_template, tokenizer
from openai_frontend.prompting.chat_template import ChatTemplate
from openai_frontend.prompting.tokenizer import Tokenizer
from openai_frontend.settings import Settings

_CONSTRAINTS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")

_UNKNOWN_TOKENIZER = "none: only an engine in the gateway's process says which it has"


@dataclass(kw_only=True)
class Report:
    """What `check` says of a model, in the order in which it says it."""

    model: str
    contract: str = ""
    tokenizer: str = ""
    chat_template: str = ""
    tool_calls: str = ""
    reasoning: str = ""
    constraints: list[str] | None = None  # None: not known
    why: Sequence[str] = ()
    will_not_work: list[str] = field(default_factory=list)
    problem: str | None = None  # why the model could not be served


def check(name_or_path: str, settings: Settings, *, as_json: bool) -> int:
    """Writes the report; 1 where the model could not be served."""
    report = Report(model=name_or_path)
    try:
        _fill(report, model_folder.find(name_or_path, settings.model_repository), settings)
    except ModelUnavailable as error:
        report.problem = error.message
    sys.stdout.write(json.dumps(asdict(report), indent=2) + "\n" if as_json else _text(report))
    return 0 if report.problem is None else 1


def _fill(report: Report, folder: ModelFolder, settings: Settings) -> None:
    report.model = folder.name
    report.contract = _contract(folder)
    report.constraints = _constraints(folder)
    place = folder.tokenizer()
    if place is None:
        report.tokenizer = _UNKNOWN_TOKENIZER
        report.tool_calls = report.reasoning = "none"
        report.will_not_work.append("Without a tokenizer there is no chat, so there are no tools.")
        return
    report.tokenizer = str(place)
    _fill_in_reading(report, place, settings)


def _fill_in_reading(report: Report, place: Path, settings: Settings) -> None:
    loaded = tokenizer.load(place)
    report.chat_template, template = _template(report.model, loaded, settings.chat_template)
    if template is None:
        report.will_not_work.append("Without a chat template there is no chat.")
    else:
        ChatTemplate(template, loaded.special_tokens)
    files = ModelFiles(folder=place, chat_template=template)
    named = ParserSettings(
        tool_parser=settings.tool_parser, reasoning_parser=settings.reasoning_parser
    ).of(report.model)
    reading = choose(files, named)
    report.tool_calls = reading.name if reading.tools else "none"
    report.reasoning = reading.name if reading.reasoning else "none"
    report.why = reading.because
    report.will_not_work += lacks(reading, files)


def _contract(folder: ModelFolder) -> str:
    if folder.backend is None:
        return "unknown: a folder of weights, no model of a repository"
    if folder.backend == "inprocess":
        return f"the in-process backend's, engine {folder.engine}"
    if folder.backend == "vllm":
        return "NVIDIA's vLLM backend's"
    if "text_output" in folder.tensors:
        return f"text in and out, backend {folder.backend}"
    return f"unknown: config.pbtxt of backend {folder.backend} names no text_output"


def _constraints(folder: ModelFolder) -> list[str]:
    """The constraints that reach the engine; those of our mock are taken, and change nothing."""
    reach = folder.backend in ("inprocess", "vllm") or "sampling_parameters" in folder.tensors
    return list(_CONSTRAINTS) if reach and folder.engine != "mock" else []


def _template(model: str, loaded: Tokenizer, by_model: Mapping[str, str]) -> tuple[str, str | None]:
    """Where the template comes from, and its text."""
    chosen = by_model.get(model, by_model.get("*"))
    if chosen is not None:
        kind = "built in" if chosen in chat_templates.names() else "a file"
        return f"{chosen}, {kind}, by the setting chat_template", chat_template.read(chosen)
    template = template_for_tools(loaded.chat_templates)
    if template is None:
        return "none", None
    purpose = "tool_use" if "tool_use" in loaded.chat_templates else "default"
    return f"the tokenizer's own ({purpose})", template


def _text(report: Report) -> str:
    """A paragraph for each member that says something; several sentences stand below each other."""
    lines = []
    for name, value in asdict(report).items():
        if name == "constraints" and value is not None:
            value = [", ".join(value) or "none"]
        sentences = [value] if isinstance(value, str) else [*(value or ())]
        labels = [name.replace("_", " "), *[""] * len(sentences)]
        lines += [
            f"{label:<14} {text}" for label, text in zip(labels, sentences, strict=False) if text
        ]
    return "".join(f"{line}\n" for line in lines)
