"""Builds or serves the documentation site with MkDocs, from its own environment.

`build` fails on any warning of MkDocs, and on a page that would make a browser load something from
another host.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).parent.parent
MKDOCS = ROOT / ".venv" / "tools" / "docs" / "bin" / "mkdocs"
SITE = ROOT / "build" / "site"

# A browser loads what these attributes name; the target of a link (`a href`) only on a click.
LOADED = {"src", "srcset", "poster", "data"}
LOADED_RELATIONS = {"stylesheet", "preload", "prefetch", "preconnect", "dns-prefetch", "icon"}


class LoadedUrls(HTMLParser):
    """Collects the URLs of other hosts that a page makes a browser load."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        found = [value for name, value in values.items() if name in LOADED]
        if tag == "link" and LOADED_RELATIONS & set(values.get("rel", "").split()):
            found.append(values.get("href", ""))
        self.urls += [url for url in found if url.startswith(("http:", "https:", "//"))]


def foreign_urls(site: Path) -> Iterator[str]:
    """`page: URL` for each resource of another host that a page of the site loads."""
    for page in sorted(site.rglob("*.html")):
        parser = LoadedUrls()
        parser.feed(page.read_text(encoding="utf-8"))
        yield from (f"{page.relative_to(site)}: {url}" for url in parser.urls)


def mkdocs(*arguments: str) -> int:
    # Material announces its end of life (May 2027) at each build; that is a decision for later.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run([MKDOCS, *arguments], cwd=ROOT, env=environment, check=False).returncode


def build() -> int:
    if code := mkdocs("build", "--strict"):
        return code
    foreign = list(foreign_urls(SITE))
    for line in foreign:
        sys.stderr.write(f"loads from another host: {line}\n")
    return 1 if foreign else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts.docs_site", description=__doc__)
    parser.add_argument("command", choices=("build", "serve"))
    if parser.parse_args().command == "build":
        return build()
    return mkdocs("serve", "--dev-addr", "127.0.0.1:8000")


if __name__ == "__main__":
    sys.exit(main())
