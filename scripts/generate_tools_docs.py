"""Writes docs/tools.md from the table of families and the recorded outputs of the tests."""

import json
from pathlib import Path

from openai_frontend.parsing.choice import FAMILIES
from openai_frontend.parsing.family import Family

_ROOT = Path(__file__).parent.parent
PAGE = _ROOT / "docs" / "tools.md"
RECORDED = _ROOT / "tests" / "data" / "parsing"

HEAD = """\
# Tool calls and reasoning

Written by `python -m scripts.generate_tools_docs` from the rows in
`openai_frontend/parsing/families/`; do not edit.

Each model writes its tool calls and its reasoning in its own way. A family is a row that says how;
one incremental parser reads all of them, for answers that stream and for those that do not. The
family is chosen from the model's chat template, then from `model_type` in its config, and can be
set by name. The last column counts the outputs, written in the family's published format, that the
tests replay: whole, at every split into two, by character, in pieces like tokens, and truncated at
every point.

**Not in use yet**: no endpoint runs the parsers, and requests that offer tools are refused.

What holds for every family:

- Text that cannot be a call is content, as it came. White space that touches a marker is a part of
  the marker.
- A call begins when its name and the beginning of its arguments are there. From then on its
  arguments stream as JSON. Where they were converted, numbers, booleans and objects follow the
  types of the tool's schema.
- A call that is cut off, or goes astray, after it has begun ends as it stands: its arguments are
  the beginning of a JSON object. One that had not begun is content. A literal, an escape or an end
  marker that is cut off is dropped.
- The arguments of one call take at most 128 KiB; there the answer ends.
- A bare object or list is a call only if it names a tool that was offered.
- Without tools in the request, what looks like a call is content.
"""

COLUMNS = """\
| family | models | tool syntax | reasoning | ids | outputs |
|---|---|---|---|---|--:|
"""


def page() -> str:
    """The whole page."""
    return f"{HEAD}\n{COLUMNS}{''.join(map(row, FAMILIES))}"


def row(family: Family) -> str:
    """One line of the table."""
    names = ", ".join(f"`{name}`" for name in (family.name, *family.aliases))
    tools = family.tools.summary if family.tools else "none"
    form = (family.id_form.__doc__ or "").removesuffix(".") if family.tools else ""
    cells = (names, family.models, tools, reasoning(family), form, str(recorded(family)))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def reasoning(family: Family) -> str:
    """Its markers, and whether the output begins inside them."""
    if family.reasoning is None:
        return family.reasoning_summary or "none"
    inside = ", begins inside" if family.reasoning.starts_inside else ""
    return f"`{family.reasoning.start}...{family.reasoning.end}`{inside}"


def recorded(family: Family) -> int:
    """How many outputs of it the tests replay."""
    text = (RECORDED / f"{family.name}.json").read_text(encoding="utf-8")
    return len(json.loads(text)["outputs"])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
