"""Text that UTF-8 can encode."""


def well_formed(text: str) -> str:
    """Return the text with surrogate pairs joined and lone surrogates replaced by U+FFFD, because
    UTF-8 cannot encode them.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
