"""Whose turn a request waits for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueKey:
    """Requests of one key wait behind one another; keys of one priority take turns."""

    key: str = ""  # the digest of an API key; all who have none are one caller
    priority: int = 0  # lower numbers first


ANONYMOUS = QueueKey()
