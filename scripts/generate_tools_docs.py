"""Writes docs/tools.md from tools_page.md, the table of families, and the tests' sample outputs."""

import json
from pathlib import Path

from openai_frontend.parsing.family import Family
from openai_frontend.parsing.registry import FAMILIES
from openai_frontend.serving.constraints.family_tags import TAGS

_ROOT = Path(__file__).parent.parent
PAGE = _ROOT / "docs" / "tools.md"
TEXT = _ROOT / "scripts" / "tools_page.md"
EXAMPLE = _ROOT / "docs" / "examples" / "line_calls.py"
SAMPLES = _ROOT / "tests" / "data" / "parsing"

COLUMNS = """\
| family | models | tool syntax | constrained in | reasoning | ids | outputs |
|---|---|---|---|---|---|--:|
"""


def page() -> str:
    families = COLUMNS + "".join(map(row, FAMILIES))
    text = TEXT.read_text(encoding="utf-8").replace("{families}", families)
    return text.replace("{example}", EXAMPLE.read_text(encoding="utf-8"))


def row(family: Family) -> str:
    """One line of the table."""
    names = ", ".join(f"`{name}`" for name in (family.name, *family.aliases))
    tools = family.tools.summary if family.tools else "none"
    form = (family.id_form.__doc__ or "").removesuffix(".") if family.tools else ""
    grammar = constrained_in(family)
    cells = (
        names,
        family.models,
        tools,
        grammar,
        reasoning(family),
        form,
        str(samples(family)),
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def constrained_in(family: Family) -> str:
    """The format that a grammar enforces for calls: the family's own, or JSON."""
    if family.tools is None:
        return ""
    return "own" if family.name in TAGS or family.tools.frames_output else "JSON"


def reasoning(family: Family) -> str:
    """Its markers, and whether the output begins inside them."""
    if family.reasoning is None:
        return family.reasoning_summary or "none"
    inside = ", begins inside" if family.reasoning.starts_inside else ""
    return f"`{family.reasoning.start}...{family.reasoning.end}`{inside}"


def samples(family: Family) -> int:
    """How many outputs of it the tests replay."""
    text = (SAMPLES / f"{family.name}.json").read_text(encoding="utf-8")
    return len(json.loads(text)["outputs"])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
