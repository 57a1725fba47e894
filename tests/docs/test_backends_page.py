"""docs/backends.md matches the tensor contracts."""

from scripts.generate_backends_docs import PAGE, page


def test_page_is_current() -> None:
    """`python -m scripts.generate_backends_docs` would change nothing."""

    assert PAGE.read_text(encoding="utf-8") == page()
