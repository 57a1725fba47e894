"""Checks the Python version; unsupported versions must be able to parse this file."""

OLDEST = (3, 11)
TOO_NEW = (3, 14)


def python_problem(version: tuple) -> str:  # type: ignore[type-arg]  # 3.6 takes no tuple[...]
    """An error on one line for an unsupported Python; empty for a supported one."""
    if OLDEST <= tuple(version[:2]) < TOO_NEW:
        return ""
    found = ".".join(map(str, version[:3]))
    return "Python 3.11, 3.12 or 3.13 is needed, this is " + found + ": run make PYTHON=python3.11"
