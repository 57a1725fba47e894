"""Imported by vLLM's fork server alone: ends it without freeing its modules.

It has imported vLLM's extensions, one of which reports its types as leaked (cli/serve.py).
"""

import atexit
import os

atexit.register(os._exit, 0)  # processes that it forks do not run this: multiprocessing ends them
