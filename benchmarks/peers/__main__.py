"""`python -m benchmarks.peers`."""

import signal
import sys

from benchmarks.peers.command import main

if __name__ == "__main__":
    # As Ctrl-C: the servers end, and what was measured until then is shown
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
