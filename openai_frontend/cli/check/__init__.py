"""`check`: reports how models would be served, and what will not work. Starts no engine."""

import json
import logging
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from openai_frontend.cli import cached_repository, model_directory
from openai_frontend.cli.check import inspect, load_checks
from openai_frontend.cli.check.report import Report, as_line, as_text
from openai_frontend.cli.model_directory import ModelDirectory
from openai_frontend.config import model_folders
from openai_frontend.config.loader import InvalidSettings
from openai_frontend.config.model_options import ModelOptions
from openai_frontend.config.settings import Settings
from openai_frontend.errors import ModelUnavailable

# The report contains the problems; without a handler Python would write them to stderr too
logging.getLogger("openai_frontend").addHandler(logging.NullHandler())


# Shown for a model that no endpoint of OpenAI's API serves
_TENSORS = "/v2 only"


def check(name_or_path: str, settings: Settings, *, as_json: bool, elsewhere: bool = False) -> int:
    """Writes the report of one model; returns 1 if it cannot be served.

    `elsewhere`: it is to run on another machine, so its backend may be missing here.
    """
    report = Report(model=name_or_path)
    try:
        folder = _find(name_or_path, settings)
        _fill(report, folder, settings, elsewhere=elsewhere)
        _check_steps(report, folder.path.parent, settings, elsewhere=elsewhere)
    except ModelUnavailable as error:
        report.problem = error.message
    _write(asdict(report) if as_json else as_text(report))
    return 0 if report.problem is None else 1


def _find(name_or_path: str, settings: Settings) -> ModelDirectory:
    """Raises ModelUnavailable."""
    repositories, options = settings.repository_folders(), settings.options_by_model()
    weights = model_directory.find_weights(name_or_path, repositories)
    if weights is None:
        return model_directory.find(name_or_path, repositories, options)
    try:
        model = cached_repository.generated(str(weights), settings)
    except InvalidSettings as error:
        raise ModelUnavailable(str(error)) from None
    return model_directory.generated(weights, model, options)


def _fill(
    report: Report, folder: ModelDirectory, settings: Settings, *, elsewhere: bool = False
) -> None:
    """Raises ModelUnavailable for a model that cannot be served."""
    inspect.fill(report, folder, settings.role)
    if report.no_endpoint:
        if not settings.enable_kserve:
            raise ModelUnavailable(f"{report.contract.removeprefix('none: ')}, and /v2 is disabled")
        report.serves = [_TENSORS]
    hosts = settings.allowed_media_domains
    takes_media = any(
        takes and not takes.startswith("none") for takes in (report.images, report.input_audio)
    )
    if hosts and takes_media:
        report.media_urls = f"https from {', '.join(hosts)} (allowed_media_domains)"
    missing = load_checks.missing_backend(folder, settings.backend_directory)
    if missing is not None and not elsewhere:
        raise ModelUnavailable(missing)
    if missing is not None:
        report.will_not_work.append(f"On this machine: {missing}.")


def _check_steps(report: Report, beside: Path, settings: Settings, *, elsewhere: bool) -> None:
    for name in report.steps:
        paths = (repository / name for repository in (beside, *settings.repository_folders()))
        path = next(filter(model_folders.is_model, paths), None)
        if path is None:
            raise ModelUnavailable(f"its ensemble step '{name}' does not exist")
        step = model_directory.read(path, {})
        missing = load_checks.missing_backend(step, settings.backend_directory)
        if missing is not None and not elsewhere:
            raise ModelUnavailable(f"its ensemble step '{name}' cannot be served: {missing}")


def check_all(settings: Settings, *, as_json: bool) -> int:
    """Writes one line per model of the repositories; returns 1 if one cannot be served."""
    paths = list(model_folders.folders(settings.repository_folders()))
    options = settings.options_by_model()
    reports = [_report(path, options, settings) for path in paths]
    _mark_steps(reports)
    _find_clashes(reports)
    width = max((len(report.model) for report in reports), default=0)
    lines = "".join(as_line(report, width) for report in reports)
    nothing = "".join(f"{path}: no models\n" for path in settings.repository_folders())
    _write([asdict(report) for report in reports] if as_json else lines or nothing)
    return 1 if any(report.problem for report in reports) or not reports else 0


def _write(output: Any) -> None:
    sys.stdout.write(output if isinstance(output, str) else json.dumps(output, indent=2) + "\n")


def _report(path: Path, options: Mapping[str, ModelOptions], settings: Settings) -> Report:
    report = Report(model=path.name)
    try:
        if not model_folders.is_model(path):
            raise ModelUnavailable("it has neither a config.pbtxt nor a version folder")
        folder = model_directory.read(path, options)
        _fill(report, folder, settings)
    except ModelUnavailable as error:
        report.problem = error.message
    return report


def _mark_steps(reports: Sequence[Report]) -> None:
    """Marks the steps of ensembles, and the ensembles that lack one."""
    known = {report.model: report for report in reports}
    for ensemble in reports:
        for step in map(known.get, ensemble.steps):
            if step is not None and not step.expose:
                step.ensemble = step.ensemble or ensemble.model
    for ensemble in reports:
        faults = (_fault(step, known.get(step)) for step in ensemble.steps)
        ensemble.problem = ensemble.problem or next(filter(None, faults), None)


def _fault(name: str, step: Report | None) -> str | None:
    """Why a step prevents the ensemble from being served."""
    if step is None:
        return f"its ensemble step '{name}' does not exist"
    return f"its ensemble step '{name}' cannot be served" if step.problem else None


def _find_clashes(reports: Sequence[Report]) -> None:
    """Reports duplicate names, and aliases that another model has as name or alias."""
    names = Counter(report.model for report in reports)
    aliases = Counter(alias for report in reports for alias in report.aliases)
    for report in reports:
        duplicates = [each for each in report.aliases if each in names or aliases[each] > 1]
        if names[report.model] > 1:
            report.problem = "another model has the same name"
        elif duplicates:
            report.problem = f"its alias '{duplicates[0]}' belongs to another model too"
