"""docs/settings.md matches the table of settings."""

from scripts.generate_settings_docs import PAGE, page


def test_page_is_current() -> None:
    """`python -m scripts.generate_settings_docs` would change nothing."""

    assert PAGE.read_text(encoding="utf-8") == page()
