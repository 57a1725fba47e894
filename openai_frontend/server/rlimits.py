"""How many files and connections the process may have open."""

import logging
import resource

logger = logging.getLogger(__name__)

# Beside connections: models' files, the core's and the engines' own
SPARE = 512


def raise_nofile_limit(connections: int) -> None:
    """Raises the limit as far as so many connections need, and says where that is too far.

    Where descriptors run out all the same, the event loop turns new connections away.
    """
    wanted = connections + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and wanted > hard:
        logger.warning(
            "the system lets this process have %d files open; max_connections wants %d",
            hard,
            wanted,
        )
        wanted = hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
