"""Headers that every answer has, for browsers: the server puts them on, at no cost for each."""

_A_YEAR_S = 365 * 24 * 3600

_HEADERS = [
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-store"),  # answers are one caller's, and never the same again
]


def security_headers(*, tls: bool) -> list[tuple[str, str]]:
    """With `tls`, a browser that came once comes by HTTPS alone."""
    hsts = [("strict-transport-security", f"max-age={_A_YEAR_S}")]
    return _HEADERS + hsts if tls else _HEADERS
