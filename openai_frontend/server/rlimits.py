"""Raises the limit of open files (RLIMIT_NOFILE)."""

import logging
import resource

logger = logging.getLogger(__name__)

# Descriptors for other things than connections: model files, the core, engines
RESERVED = 512


def raise_nofile_limit(connections: int) -> None:
    """Raises the soft limit for this number of connections, up to the hard limit, and warns if that
    is too low.

    If descriptors run out all the same, the event loop rejects new connections.
    """
    needed = connections + RESERVED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and needed > hard:
        logger.warning(
            "the hard limit for open files is %d, but max_connections needs %d",
            hard,
            needed,
        )
        needed = hard
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
