"""MkDocs runs these functions while it builds the documentation site."""

from typing import Any

# Tables of four columns, which a phone shows as blocks (docs/theme/tables.css)
STACKED = {"settings.md"}
# A search finds a guide before the decisions that mention the same words.
DECISIONS_BOOST = 0.01  # a match in a title counts a thousand times


def on_page_markdown(markdown: str, *, page: Any, **_context: Any) -> str:
    if page.file.src_uri.startswith("decisions/"):
        page.meta.setdefault("search", {}).setdefault("boost", DECISIONS_BOOST)
    return markdown


def on_page_content(html: str, *, page: Any, **_context: Any) -> str:
    if page.file.src_uri in STACKED:
        html = html.replace("<table>", '<div class="stacked"><table>')
        html = html.replace("</table>", "</table></div>")
    return html
