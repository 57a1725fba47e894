"""The models that an ensemble's config names: they are copied with it."""

import re
from collections.abc import Iterable
from pathlib import Path

# In a config, only the steps of an ensemble have this field
_STEP = re.compile(r"""\bmodel_name\s*:\s*["']([^"'\n/\\]+)["']""")
_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)
_SCHEDULING = "ensemble_scheduling"


def steps(model: str, repositories: Iterable[Path]) -> set[str]:
    """The steps of a model in one of the repositories; empty without an ensemble of that name."""
    found: set[str] = set()
    for repository in repositories:
        try:
            config = (repository / model / "config.pbtxt").read_text(errors="replace")
        except OSError:
            continue  # another repository has it, or its backend completes it
        if _SCHEDULING in config:
            found.update(_STEP.findall(_COMMENT.sub("", config)))
    return found
