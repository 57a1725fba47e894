"""`check`: how models would be served, why, and what will not work. Starts no engine."""

import json
import logging
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from openai_frontend.cli import inspect, model_directory
from openai_frontend.cli.report import Report, as_line, as_text
from openai_frontend.config.model_options import ModelOptions
from openai_frontend.config.settings import Settings
from openai_frontend.errors import ModelUnavailable
from openai_frontend.models.loader import Unservable

# What is wrong stands in the report; without a handler Python would write it a second time
logging.getLogger("openai_frontend").addHandler(logging.NullHandler())


def check(name_or_path: str, settings: Settings, *, as_json: bool) -> int:
    """Writes the report of one model; 1 where it could not be served."""
    report = Report(model=name_or_path)
    try:
        options = settings.options_by_model()
        folder = model_directory.find(name_or_path, settings.model_repository, options)
        inspect.fill(report, folder, settings.backend_directory)
        _check_parts(report, [folder.path.parent, *settings.model_repository])
    except Unservable as error:
        report.for_no_request, report.problem = True, error.message
    except ModelUnavailable as error:
        report.problem = error.message
    _write(asdict(report) if as_json else as_text(report))
    return 0 if report.problem is None else 1


def _check_parts(report: Report, repositories: Sequence[Path]) -> None:
    for part in report.parts:
        if not any(model_directory.is_model(repository / part) for repository in repositories):
            raise ModelUnavailable(f"its part '{part}' is not there")


def check_all(settings: Settings, *, as_json: bool) -> int:
    """Writes a line for each model of the repositories; 1 where one could not be served."""
    paths = list(model_directory.folders(settings.model_repository))
    options = settings.options_by_model()
    reports = [_report(path, options, settings.backend_directory) for path in paths]
    _tell_parts(reports)
    _find_clashes(reports)
    width = max((len(report.model) for report in reports), default=0)
    lines = "".join(as_line(report, width) for report in reports)
    nothing = "".join(f"{path}: no model\n" for path in settings.model_repository)
    _write([asdict(report) for report in reports] if as_json else lines or nothing)
    return 1 if any(report.problem for report in reports) or not reports else 0


def _write(said: Any) -> None:
    sys.stdout.write(said if isinstance(said, str) else json.dumps(said, indent=2) + "\n")


def _report(path: Path, options: Mapping[str, ModelOptions], backends: Path | None) -> Report:
    report = Report(model=path.name)
    try:
        if not model_directory.is_model(path):
            raise ModelUnavailable("it has neither a config.pbtxt nor the folder of a version")
        inspect.fill(report, model_directory.read(path, options), backends)
    except Unservable as error:
        report.for_no_request, report.problem = True, error.message
    except ModelUnavailable as error:
        report.problem = error.message
    return report


def _tell_parts(reports: Sequence[Report]) -> None:
    """A part is for no request of its own, so that its tensors are for none is no problem."""
    known = {report.model: report for report in reports}
    for whole in reports:
        for part in map(known.get, whole.parts):
            if part is not None and not part.expose:
                part.ensemble = part.ensemble or whole.model
    for report in reports:
        if report.ensemble and report.for_no_request:
            report.problem = None
    for whole in reports:
        faults = (_fault(part, known.get(part)) for part in whole.parts)
        whole.problem = whole.problem or next(filter(None, faults), None)


def _fault(name: str, part: Report | None) -> str | None:
    """Why a part keeps the whole from being served."""
    if part is None:
        return f"its part '{name}' is not there"
    return f"its part '{name}' cannot be served" if part.problem else None


def _find_clashes(reports: Sequence[Report]) -> None:
    """Two models of one name; an alias that is another's, or another's name."""
    names = Counter(report.model for report in reports)
    aliases = Counter(alias for report in reports for alias in report.aliases)
    for report in reports:
        taken = [each for each in report.aliases if each in names or aliases[each] > 1]
        if names[report.model] > 1:
            report.problem = "there is another model of this name"
        elif taken:
            report.problem = f"its alias '{taken[0]}' is another model's too"
