"""Which Pythons will do; written so that Pythons which will not can read it, too."""

OLDEST = (3, 11)
TOO_NEW = (3, 14)


def python_problem(version: tuple) -> str:  # type: ignore[type-arg]  # 3.6 takes no tuple[...]
    """The one line about a Python that will not do; empty for one that will."""
    if OLDEST <= tuple(version[:2]) < TOO_NEW:
        return ""
    found = ".".join(map(str, version[:3]))
    return "Python 3.11, 3.12 or 3.13 is needed, this is " + found + ": run make PYTHON=python3.11"
