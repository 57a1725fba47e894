"""Writes docs/tools.md from tools_page.md, and the table of families."""

from pathlib import Path

from openai_frontend.parsing.family import Family
from openai_frontend.parsing.registry import FAMILIES
from openai_frontend.serving.constraints.family_tags import TAGS

_ROOT = Path(__file__).parent.parent
PAGE = _ROOT / "docs" / "tools.md"
TEXT = _ROOT / "scripts" / "tools_page.md"

COLUMNS = """\
| family | models | tool syntax | constrained in | reasoning |
|---|---|---|---|---|
"""


def page() -> str:
    families = COLUMNS + "".join(map(row, FAMILIES))
    return TEXT.read_text(encoding="utf-8").replace("{families}", families)


def row(family: Family) -> str:
    """One line of the table."""
    names = ", ".join(f"`{name}`" for name in (family.name, *family.aliases))
    tools = family.tools.summary if family.tools else "none"
    cells = (names, family.models, tools, constrained_in(family), reasoning(family))
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


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
