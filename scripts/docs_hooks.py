"""MkDocs runs these functions while it builds the documentation site."""

from typing import Any

# A search finds a guide before the decisions that mention the same words.
DECISIONS_BOOST = 0.5


def on_page_markdown(markdown: str, *, page: Any, **_context: Any) -> str:
    if page.file.src_uri.startswith("decisions/"):
        page.meta.setdefault("search", {}).setdefault("boost", DECISIONS_BOOST)
    return markdown
