"""Reasons in the errors of xgrammar."""


def error_of(tag: str) -> str | None:
    """Why xgrammar cannot read a structural tag; None if it can."""
    import xgrammar

    try:
        xgrammar.Grammar.from_structural_tag(tag)
    except (RuntimeError, ValueError) as error:
        return reason_of(error) or "it does not compile"
    return None


def reason_of(error: BaseException) -> str | None:
    """The reason if the error is about the grammar. Raises MemoryError if xgrammar ran out of
    memory.
    """
    if "bad_alloc" in str(error):
        raise MemoryError from error
    return reason_of_xgrammar(error)


def reason_of_xgrammar(error: BaseException) -> str | None:
    """The text after `[10:36:53] /project/cpp/converter.cc:83: ` in xgrammar's errors."""
    _, source, reason = str(error).partition(".cc:")
    reason = reason.partition(": ")[2].strip()
    if reason.startswith("Check failed: "):  # followed by the failed C++ condition
        reason = reason.rpartition(" is false: ")[2]
    return reason if source else None
